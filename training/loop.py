"""The training loop that every model shares: time budget, EMA, checkpoints, resume, loss curve.

    loop = Loop("vae", {"vae": model}, lr=1e-3)
    loop.run(step, minutes=20)     step(number) -> {"loss": tensor, ...}; the loss is differentiated
    loop.averaged()                the EMA weights, in place, for evaluation and export

A run resumes from its checkpoint by itself. Its budget counts the processor time it had, so that a run that is frozen or
crowded out still does its work. The learning rate warms up, stays, and falls to zero over the last part of the budget
(`--cooldown`, a fifth unless told); the EMA (with a bias-corrected decay) makes any moment a fair one to stop at, and
a SIGTERM saves a checkpoint and ends.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from training import parallel
from training.optimizer import Muon
from training.paths import folder

CHECKPOINT_SECONDS = 180


class Loop:
    def __init__(
        self, name: str, modules: dict[str, torch.nn.Module], lr: float, *, ema: float = 0.999, decay: float = 0.01
    ):
        self.name, self.modules, self.lr, self.decay = name, modules, lr, ema
        self.folder = folder(name)
        self.parameters = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
        named = [(n, p) for m in modules.values() for n, p in m.named_parameters() if p.requires_grad]
        self.optimizer = Muon(named, lr, decay=decay)
        self.ema = {key: m.state_dict() for key, m in modules.items()}
        self.ema = {key: {k: v.clone().float() for k, v in state.items()} for key, state in self.ema.items()}
        self.step, self.seconds, self.history = 0, 0.0, []
        self.stopped = False
        self.load()

    # ------------------------------------------------------------ checkpoints
    def load(self) -> None:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, weights_only=False)
        for key in self.modules.keys() & saved["modules"].keys():  # a module may be newer than the checkpoint
            self.modules[key].load_state_dict(saved["modules"][key])
        try:
            self.optimizer.load_state_dict(saved["optimizer"])
        except ValueError as error:  # another optimizer or other groups: the weights are worth keeping all the same
            print(f"{self.name}: the optimizer starts anew ({error})", flush=True)
        self.ema |= saved["ema"]
        self.step, self.seconds, self.history = saved["step"], saved["seconds"], saved["history"]
        print(f"{self.name}: resumed at step {self.step}", flush=True)

    def save(self) -> None:
        state = {
            "modules": {key: m.state_dict() for key, m in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema,
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
        }
        partial = self.folder / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")  # never half a checkpoint
        draw_curves(self.history, self.folder / "loss.png", self.name)

    def averaged(self) -> None:
        """Put the EMA weights into the modules."""
        for key, module in self.modules.items():
            module.load_state_dict(self.ema[key])
            module.eval()

    @torch.no_grad()
    def update_ema(self) -> None:
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        for key, module in self.modules.items():
            state = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
            torch._foreach_lerp_([self.ema[key][name] for name in state], list(state.values()), 1 - decay)

    # ------------------------------------------------------------ the loop
    def run(
        self,
        step: Callable[[int], dict[str, torch.Tensor]],
        minutes: float,
        *,
        warmup: int = 100,
        cooldown: float = 0.2,
    ) -> None:
        """`minutes` of processor time of each process."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopped", True))
        start = time.process_time()
        last_save = last_print = time.time()
        shown: dict[str, list[float]] = {}
        for module in self.modules.values():
            module.train()
        began = self.step
        if began:  # the optimizer remembers its momentum: a resumed run needs only a short warmup
            warmup = min(warmup, 20)
        over = False
        while not over:
            elapsed = time.process_time() - start
            left = max(0.0, 1 - elapsed / (minutes * 60))
            rate = parallel.agree(self.lr * min(1.0, (self.step - began + 1) / warmup, left / cooldown))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            losses = step(self.step)
            self.optimizer.zero_grad(set_to_none=True)
            losses["loss"].backward()
            over = parallel.average(self.parameters, stop=left == 0 or self.stopped)
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            if torch.isfinite(norm):
                self.optimizer.step()
            self.step += 1
            self.update_ema()
            for key, value in losses.items():
                shown.setdefault(key, []).append(float(value.detach()))
            if parallel.rank() == 0 and time.time() - last_print > 20:
                last_print = time.time()
                means = {key: float(np.mean(values)) for key, values in shown.items()}
                shown = {}
                self.history.append({"step": self.step, "seconds": self.seconds + elapsed, **means})
                figures = "  ".join(f"{key} {value:.4f}" for key, value in means.items())
                print(f"{self.name} step {self.step}  {elapsed / 60:.1f} min  {figures}", flush=True)
            if parallel.rank() == 0 and time.time() - last_save > CHECKPOINT_SECONDS:
                last_save = time.time()
                kept, self.seconds = self.seconds, self.seconds + elapsed
                self.save()
                self.seconds = kept
        self.seconds += time.process_time() - start
        if parallel.rank() == 0:
            self.save()


def arguments(description: str, minutes: float, **own: float) -> argparse.Namespace:
    """The arguments of every training script and a script's own numbers; also fixes seeds and threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--minutes", type=float, default=minutes, help="processor time of this run; a later run resumes"
    )
    parser.add_argument("--cooldown", type=float, default=0.2, help="last part of it in which the learning rate falls")
    parser.add_argument("--processes", type=int, default=1, help="2 for both cores; each draws its own data")
    parser.add_argument("--seed", type=int, default=9)
    for name, default in own.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    parallel.start(options.processes)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    seed_everything(options.seed)
    return options


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def fresh(step: int, seed: int = 9) -> np.random.Generator:
    """Random numbers of one step: the same after a resume as without one."""
    return np.random.default_rng([seed, step, 77 + parallel.rank()])


def draw_curves(history: list[dict], path: Path, title: str) -> None:
    """The loss against the steps, on a logarithmic axis, drawn with PIL alone."""
    from PIL import Image, ImageDraw

    if len(history) < 2:
        return
    width, height, margin = 640, 360, 48
    page = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(page)
    steps = np.array([h["step"] for h in history], float)
    losses = np.array([h["loss"] for h in history], float)
    low, high = np.log10(max(losses.min(), 1e-6)), np.log10(max(losses.max(), 2e-6))
    high = max(high, low + 0.05)
    xs = margin + (steps - steps[0]) / max(steps[-1] - steps[0], 1) * (width - 2 * margin)
    ys = height - margin - (np.log10(np.maximum(losses, 1e-6)) - low) / (high - low) * (height - 2 * margin)
    pen.rectangle([margin, margin, width - margin, height - margin], outline="#999999")
    pen.line(list(zip(xs.tolist(), ys.tolist(), strict=True)), fill="#c03020", width=2)
    pen.text((margin, 16), f"{title}: loss (log scale), last {losses[-1]:.4g}", fill="black")
    pen.text((4, margin), f"{10**high:.3g}", fill="black")
    pen.text((4, height - margin - 10), f"{10**low:.3g}", fill="black")
    pen.text((margin, height - margin + 8), f"step {int(steps[0])}", fill="black")
    pen.text((width - margin - 80, height - margin + 8), f"step {int(steps[-1])}", fill="black")
    page.save(path)


def write_figures(name: str, figures: dict) -> None:
    path = folder("figures") / f"{name}.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
