"""Measure the shipped ONNX models on held-out combinations: python -m training.evaluate [judge pictures sheets vae masks clip writer]

Everything runs on the variants in packages/opsmith-starter through ONNX Runtime; only the judge is a torch model. Seeds are
fixed. Writes training/figures.json, the table in docs/starter.md and the sheets in docs/pictures/.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer

import opsmith.starter
from opsmith import store
from opsmith.pipelines.diffusion import DiffusionApp
from opsmith.starter.vocabulary import BACKGROUNDS, PLAIN
from training import tokens, world
from training.latents import CHUNK
from training.paths import folder
from training.train_judge import Judge, as_tensor, disturb, labels
from training.train_masks import MEAN, STD
from training.train_pictures import scheduler

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
STEPS, GUIDANCE = 25, DiffusionApp(opsmith.starter.folder("pictures")).guidance
BEGIN, END = "<!-- written by training/evaluate.py -->", "<!-- end -->"


def session(name: str, component: str = "") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    path = store.find_model(opsmith.starter.folder(name) / component)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def tokenizer(name: str) -> Tokenizer:
    where = opsmith.starter.folder(name)
    inside = where / "tokenizer" / "tokenizer.json"
    return Tokenizer.from_file(str(inside if inside.exists() else where / "tokenizer.json"))


# ---------------------------------------------------------------- pictures


class Painter:
    """The shipped pipeline, run by hand: text encoder, UNet with guidance, DDIM, VAE decoder."""

    def __init__(self) -> None:
        self.text, self.unet, self.decoder = (session("pictures", c) for c in ("text_encoder", "unet", "vae_decoder"))
        self.tokenizer = tokenizer("pictures")
        config = json.loads((opsmith.starter.folder("pictures") / "vae_decoder" / "config.json").read_text())
        self.scale = config["scaling_factor"]

    def latents(self, captions: list[str], seed: int, steps: int = STEPS, guidance: float = GUIDANCE) -> np.ndarray:
        """[captions, 4, 12, 12], unscaled"""
        ids = tokens.encode(self.tokenizer, [""] * len(captions) + captions)
        states = self.text.run(["last_hidden_state"], {"input_ids": ids})[0]
        side = world.SIDE // 8
        noise = np.random.default_rng(seed).standard_normal((len(captions), 4, side, side), np.float32)
        sample, plan = torch.from_numpy(noise), scheduler()
        plan.set_timesteps(steps)
        for time in plan.timesteps:
            both = np.concatenate([sample.numpy()] * 2)
            inputs = {"sample": both, "timestep": np.array([float(time)], np.float32), "encoder_hidden_states": states}
            free, told = np.split(self.unet.run(None, inputs)[0], 2)
            sample = plan.step(torch.from_numpy(free + guidance * (told - free)), time, sample).prev_sample
        return sample.numpy() / self.scale

    def paint(self, captions: list[str], seed: int, **settings) -> np.ndarray:
        """uint8 [captions, 96, 96, 3]"""
        pictures = []
        for start in range(0, len(captions), 20):
            latents = self.latents(captions[start : start + 20], seed + start, **settings)
            pictures.append(to_pictures(self.decoder.run(None, {"latent_sample": latents})[0]))
        return np.concatenate(pictures)


def to_pictures(decoded: np.ndarray) -> np.ndarray:
    """float [n, 3, 96, 96] in -1..1 -> uint8 [n, 96, 96, 3]"""
    return (np.clip((decoded + 1) / 2, 0, 1) * 255 + 0.5).astype(np.uint8).transpose(0, 2, 3, 1)


def held_out_prompts(number: int, count: int | None, seed: int) -> tuple[list[world.Scene], list[str]]:
    scenes, captions = [], []
    for i in range(number):
        rng = np.random.default_rng([seed, i, 31])
        scene = world.sample_scene(rng, "held-out", count)
        scenes.append(scene)
        captions.append(world.write_caption(scene, rng))
    return scenes, captions


def load_judge() -> Judge:
    judge = Judge()
    judge.load_state_dict(torch.load(folder("judge") / "checkpoint.pt", weights_only=False)["ema"]["judge"])
    return judge.eval()


@torch.no_grad()
def judged(judge: Judge, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the things [n, 40], number of the background [n]."""
    things, grounds = judge(as_tensor(pictures))
    return things.numpy(), grounds.argmax(1).numpy()


def found(things: np.ndarray, scenes: list[world.Scene]) -> float:
    """Share of pictures in which the named things are the judge's strongest, as many as were named."""
    right = 0
    for scores, scene in zip(things, scenes, strict=True):
        wanted = {world.NAMES.index(thing.name) for thing in scene.things}
        right += set(np.argsort(-scores)[: len(wanted)].tolist()) == wanted
    return right / len(scenes)


def nearest_colour(picture: np.ndarray) -> str:
    """The plain background whose colour is nearest to the median of the picture's border."""
    border = np.concatenate([picture[:3].reshape(-1, 3), picture[-3:].reshape(-1, 3), picture[:, :3].reshape(-1, 3)])
    median = np.median(border, axis=0)
    return min(PLAIN, key=lambda name: float(np.abs(median - np.array(PLAIN[name])).sum()))


def evaluate_pictures(number: int) -> dict:
    judge, painter = load_judge(), Painter()
    figures: dict = {"steps": STEPS, "guidance": GUIDANCE, "pictures of each kind": number}
    for label, count in (("one thing", 1), ("two things", 2)):
        scenes, captions = held_out_prompts(number, count, 100 + count)
        real = np.stack([world.render(s, np.random.default_rng([i, 7]))[0] for i, s in enumerate(scenes)])
        for kind, pictures in (("real", real), ("generated", painter.paint(captions, 1000 * count))):
            things, grounds = judged(judge, pictures)
            wanted = labels(scenes)[1].numpy()
            plain = [(p, s) for p, s in zip(pictures, scenes, strict=True) if s.background in PLAIN]
            figures[f"{kind}, {label}"] = {
                "things found": round(found(things, scenes), 3),
                "background right (judge, all 14)": round(float((grounds == wanted).mean()), 3),
                "plain background's colour right (border pixels)": round(
                    float(np.mean([nearest_colour(p) == s.background for p, s in plain])), 3
                ),
            }
            print(kind, label, figures[f"{kind}, {label}"], flush=True)
    return figures


def captioned(pictures: np.ndarray, captions: list[str], columns: int, path: Path, zoom: int = 2) -> None:
    """A sheet with the caption under each picture."""
    side, line = world.SIDE * zoom, 13
    cell_height = side + 4 * line + 10
    rows = -(-len(pictures) // columns)
    page = Image.new("RGB", (columns * (side + 10) + 10, rows * cell_height + 10), "white")
    pen = ImageDraw.Draw(page)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = 10 + (i % columns) * (side + 10), 10 + (i // columns) * cell_height
        page.paste(Image.fromarray(picture).resize((side, side), Image.Resampling.BICUBIC), (x, y))
        for j, text in enumerate(textwrap.wrap(caption, 31)[:4]):
            pen.text((x, y + side + 2 + j * line), text, fill="black")
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path, optimize=True)


def evaluate_sheets() -> dict:
    """36 unpicked held-out prompts, and the nearest training scenes of the first 12 pictures."""
    painter = Painter()
    captions = held_out_prompts(36, None, 36)[1]
    pictures = painter.paint(captions, 36)
    captioned(pictures, captions, 6, PICTURES / "starter_held_out.png")
    small = as_tensor(pictures[:12])
    small = torch.nn.functional.avg_pool2d(small, 4).flatten(1)
    best, who = torch.full((12,), np.inf), [0] * 12
    trained = CHUNK * len(list(folder("latents").glob("latents_*.npy")))
    for start in range(0, trained, 500):  # every scene that the UNet was trained on
        scenes = np.stack([world.sample(seed).picture for seed in range(start, start + 500)])
        distances = torch.cdist(small, torch.nn.functional.avg_pool2d(as_tensor(scenes), 4).flatten(1))
        values, rows = distances.min(1)
        for i in torch.nonzero(values < best).flatten().tolist():
            best[i], who[i] = values[i], start + int(rows[i])
    pairs, texts = [], []
    for i in range(12):
        near = world.sample(who[i])
        pairs += [pictures[i], near.picture]
        texts += ["made: " + captions[i], "nearest training scene: " + near.caption]
    captioned(np.stack(pairs), texts, 6, PICTURES / "starter_nearest.png", zoom=2)
    return {"training scenes compared": trained}


# ---------------------------------------------------------------- the other models


def evaluate_vae(number: int = 256) -> dict:
    encoder, decoder = session("pictures", "vae_encoder"), session("pictures", "vae_decoder")
    ratios = []
    for start in range(0, number, 32):
        pictures = np.stack([world.sample(s, "held-out").picture for s in range(start, start + 32)])
        wanted = pictures.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
        parameters = encoder.run(None, {"sample": wanted})[0]
        decoded = to_pictures(decoder.run(None, {"latent_sample": parameters[:, :4]})[0])
        errors = ((decoded.astype(np.float32) - pictures) ** 2).mean((1, 2, 3))
        ratios += (10 * np.log10(255**2 / errors)).tolist()
    return {"psnr mean": round(float(np.mean(ratios)), 2), "psnr worst": round(float(np.min(ratios)), 2)}


def normalised(pictures: np.ndarray) -> np.ndarray:
    return ((pictures.transpose(0, 3, 1, 2).astype(np.float32) / 255 - MEAN.numpy()) / STD.numpy()).astype(np.float32)


def evaluate_masks(number: int = 320) -> dict:
    model, words = session("masks"), tokenizer("masks")
    overlaps: dict[str, list[float]] = {"one thing": [], "several": []}
    for seed in range(number):
        s = world.sample(50_000 + seed, "held-out")
        rng = np.random.default_rng([seed, 41])
        index = int(rng.integers(len(s.scene.things)))
        ids = tokens.encode(words, [s.scene.things[index].name])[:, :12]
        inputs = {"pixel_values": normalised(s.picture[None]), "input_ids": ids, "attention_mask": np.ones_like(ids)}
        inputs = {i.name: inputs[i.name] for i in model.get_inputs()}
        logits = torch.from_numpy(model.run(None, inputs)[0]).reshape(1, 1, 48, 48)
        size = (world.SIDE, world.SIDE)
        mask = torch.nn.functional.interpolate(logits, size=size, mode="bilinear", align_corners=False)[0, 0] > 0
        got, wanted = mask.numpy(), s.masks[index]
        overlaps["one thing" if len(s.scene.things) == 1 else "several"].append(
            float((got & wanted).sum() / max((got | wanted).sum(), 1))
        )
    figures = {f"iou, {kind}": round(float(np.mean(values)), 3) for kind, values in overlaps.items()}
    return {"mean iou": round(float(np.mean(functools.reduce(operator.iadd, overlaps.values(), []))), 3), **figures}


def evaluate_clip(rounds: int = 20) -> dict:
    text, vision, words = session("clip", "text_model"), session("clip", "vision_model"), tokenizer("clip")
    right, near = [], []
    for i in range(rounds):
        samples = [world.sample(60_000 + 32 * i + j, "held-out") for j in range(32)]
        ids = tokens.encode(words, [s.caption for s in samples])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        said = text.run(["text_embeds"], {k.name: feeds[k.name] for k in text.get_inputs()})[0]
        seen = vision.run(["image_embeds"], {"pixel_values": normalised(np.stack([s.picture for s in samples]))})[0]
        said /= np.linalg.norm(said, axis=1, keepdims=True)
        seen /= np.linalg.norm(seen, axis=1, keepdims=True)
        order = np.argsort(-(seen @ said.T), axis=1)
        right += (order[:, 0] == np.arange(32)).tolist()
        near += (order[:, :3] == np.arange(32)[:, None]).any(1).tolist()
    return {
        "right caption of 32 first": round(float(np.mean(right)), 3),
        "among the first 3": round(float(np.mean(near)), 3),
    }


def write_prompts(model, keyword: str, number: int, seed: int, temperature: float) -> list[str]:
    """`number` continuations of the keyword, sampled from the whole distribution."""
    words = tokenizer("writer")
    end, rng = words.token_to_id(tokens.END), np.random.default_rng(seed)
    ids = np.repeat([words.encode(opsmith.starter.writer_prompt(keyword)).ids], number, 0).astype(np.int64)
    begun = ids.shape[1]
    empty = {
        i.name: np.zeros([number, i.shape[1], 0, i.shape[3]], np.float32)
        for i in model.get_inputs()
        if i.name.startswith("past_key_values")
    }
    while ids.shape[1] < begun + 34 and not (ids[:, begun:] == end).any(1).all():
        # The whole text every time: slower than a cache, and nothing that could hide a fault of the model.
        positions = np.tile(np.arange(ids.shape[1]), (number, 1))
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions, **empty}
        logits = model.run(["logits"], {i.name: feeds[i.name] for i in model.get_inputs()})[0][:, -1]
        chosen = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(1)
        ids = np.concatenate([ids, chosen[:, None]], 1)
    texts = []
    for row in ids[:, begun:].tolist():
        row = row[: row.index(end)] if end in row else row
        texts.append(words.decode(row).strip())
    return texts


def evaluate_writer(each: int = 10) -> dict:
    model = session("writer")
    default = json.loads((opsmith.starter.folder("writer") / "generation_config.json").read_text())["temperature"]
    keywords = [*world.NAMES, "night", "sea", "sky", "grass", "red", "purple"]
    figures = {}
    for temperature in (default, 1.0):
        holds = parses = total = 0
        for i, keyword in enumerate(keywords):
            for text in write_prompts(model, keyword, each, i, temperature):
                holds += keyword in text.replace(",", "").split()
                parses += world.parse_caption(text) is not None
                total += 1
        figures[f"temperature {temperature}"] = {
            "prompts": total,
            "keyword in prompt": round(holds / total, 3),
            "parses as a caption": round(parses / total, 3),
            "distinct of 100 for one keyword": len(set(write_prompts(model, "frog", 100, 77, temperature))),
        }
    return figures


def evaluate_judge(number: int = 500) -> dict:
    """The judge on real scenes of the held-out combinations, clean and disturbed."""
    judge = load_judge()
    samples = [world.sample(70_000 + i, "held-out", 1 + i % 2) for i in range(number)]
    pictures = np.stack([s.picture for s in samples])
    scenes = [s.scene for s in samples]
    noisy = disturb(as_tensor(pictures), np.random.default_rng(3))
    noisy_pictures = (noisy.permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)
    figures = {}
    for kind, shown in (("clean", pictures), ("disturbed", noisy_pictures)):
        things, grounds = judged(judge, shown)
        figures[f"all things right, {kind}"] = round(found(things, scenes), 3)
        figures[f"background right, {kind}"] = round(
            float(np.mean([BACKGROUNDS[g] == s.background for g, s in zip(grounds, scenes, strict=True)])), 3
        )
    return figures


# ---------------------------------------------------------------- the table in docs/starter.md


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(figures: dict) -> str:
    """The figures against the goals, as Markdown."""
    masks, judge, pictures = figures["masks"], figures["judge"], figures["pictures"]
    default = next(iter(figures["writer"]))
    writer, one, two = figures["writer"][default], pictures["generated, one thing"], pictures["generated, two things"]
    background = min(part["background right (judge, all 14)"] for part in (one, two))
    number = pictures["pictures of each kind"]
    clip = figures["clip"]["right caption of 32 first"]
    split = f"({masks['iou, one thing']:.3f} with one thing in the picture, {masks['iou, several']:.3f} with several)"
    rows: list[tuple[str, str, str, bool]] = [
        ("VAE: mean PSNR", "26 dB", f"{figures['vae']['psnr mean']:.1f} dB", figures["vae"]["psnr mean"] >= 26),
        (
            f"writer, {default}: keyword in the prompt",
            "98 %",
            percent(writer["keyword in prompt"]),
            writer["keyword in prompt"] >= 0.98,
        ),
        (
            "writer: parses as a caption",
            "90 %",
            percent(writer["parses as a caption"]),
            writer["parses as a caption"] >= 0.9,
        ),
        (
            "writer: distinct of 100",
            "60",
            str(writer["distinct of 100 for one keyword"]),
            writer["distinct of 100 for one keyword"] >= 60,
        ),
        ("CLIP: the right one of 32 captions first", "90 %", percent(clip), clip >= 0.9),
        ("masks: mean IoU", "0.80", f"{masks['mean iou']:.3f} {split}", masks["mean iou"] >= 0.8),
        (f"pictures: background right, {number} of each kind", "95 %", percent(background), background >= 0.95),
        (
            f"pictures: the judge finds the thing, {number} with one",
            "85 %",
            percent(one["things found"]),
            one["things found"] >= 0.85,
        ),
        (
            f"pictures: the judge finds both things, {number} with two",
            "60 %",
            percent(two["things found"]),
            two["things found"] >= 0.6,
        ),
    ]
    real = [percent(pictures[f"real, {kind}"]["things found"]) for kind in ("one thing", "two things")]
    return "\n".join(
        [
            "| what | goal | now | |",
            "|---|---|---|---|",
            *(f"| {what} | {goal} | {now} | {'reached' if ok else 'not yet'} |" for what, goal, now, ok in rows),
            "",
            f"The judge itself, on real held-out scenes: the thing found in {real[0]} of pictures with one, both in {real[1]} of those",
            f"with two; {percent(judge['all things right, clean'])} over a mixed set.",
        ]
    )


def write_table(figures: dict) -> None:
    path = ROOT / "docs" / "starter.md"
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + "\n" + table(figures) + "\n" + END + rest.split(END)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["judge", "pictures", "sheets", "vae", "masks", "clip", "writer"])
    parser.add_argument("--number", type=int, default=200, help="generated pictures of each kind")
    options = parser.parse_args()
    torch.set_num_threads(2)
    path = Path(__file__).parent / "figures.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    for name in options.names:
        figures[name] = evaluate_pictures(options.number) if name == "pictures" else globals()[f"evaluate_{name}"]()
        print(name, json.dumps(figures[name]), flush=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")
    write_table(figures)


if __name__ == "__main__":
    main()
