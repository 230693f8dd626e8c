"""The words of the starter models' small world: what may be asked of them.

    vocabulary.OBJECTS      40 things that can stand in a picture
    vocabulary.TINTS        the colours a thing can be painted in (or none: its natural colours)
    vocabulary.BACKGROUNDS  10 plain colours and 4 settings
    vocabulary.SIZES, PLAIN_PHRASES, SETTING_PHRASES   how captions say sizes and backgrounds

The other words of captions: training/phrases.py. A caption of other words is no error, but the models have never seen them.
"""

# name -> file name of the emoji in emoji-datasource-google (unified code point, lower case)
OBJECTS: dict[str, str] = {
    # food
    "apple": "1f34e",
    "banana": "1f34c",
    "strawberry": "1f353",
    "pear": "1f350",
    "pineapple": "1f34d",
    "watermelon": "1f349",
    "carrot": "1f955",
    "mushroom": "1f344",
    # animals
    "cat": "1f431",
    "dog": "1f436",
    "frog": "1f438",
    "fish": "1f420",
    "turtle": "1f422",
    "butterfly": "1f98b",
    "elephant": "1f418",
    "penguin": "1f427",
    "owl": "1f989",
    "snail": "1f40c",
    "whale": "1f433",
    "rabbit": "1f430",
    # vehicles
    "car": "1f697",
    "bus": "1f68c",
    "rocket": "1f680",
    "sailboat": "26f5",
    "airplane": "2708-fe0f",
    "train": "1f682",
    # buildings
    "house": "1f3e0",
    "castle": "1f3f0",
    "tent": "26fa",
    # sky
    "moon": "1f319",
    "star": "2b50",
    "balloon": "1f388",
    # plants
    "tree": "1f333",
    "cactus": "1f335",
    "sunflower": "1f33b",
    # household
    "umbrella": "2602-fe0f",
    "cup": "2615",
    "guitar": "1f3b8",
    "hat": "1f3a9",
    "gift": "1f381",
}

# Colours a thing can be painted in. A thing without a colour word keeps its natural colours.
TINTS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (240, 130, 20),
    "yellow": (240, 205, 30),
    "green": (50, 160, 60),
    "blue": (40, 90, 215),
    "purple": (130, 60, 180),
    "pink": (240, 110, 170),
}

PLAIN: dict[str, tuple[int, int, int]] = {
    "red": (224, 84, 78),
    "orange": (250, 168, 86),
    "yellow": (252, 232, 120),
    "green": (128, 200, 120),
    "blue": (108, 164, 236),
    "purple": (172, 128, 216),
    "pink": (250, 180, 212),
    "white": (250, 250, 250),
    "gray": (160, 160, 164),
    "black": (36, 36, 40),
}
SETTINGS: tuple[str, ...] = ("sky", "grass", "sea", "night")
BACKGROUNDS: tuple[str, ...] = (*PLAIN, *SETTINGS)

# small / (medium, unsaid) / big, and the words that say so
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "medium": (),
    "big": ("big", "large", "huge"),
}

# What a background is called; {colour} stands for the name of a plain one.
PLAIN_PHRASES: tuple[str, ...] = (
    "on a {colour} background",
    "against a {colour} background",
    "in front of a {colour} wall",
)
SETTING_PHRASES: dict[str, tuple[str, ...]] = {
    "sky": ("in the sky", "high in the blue sky", "among the clouds"),
    "grass": ("on the grass", "in a green meadow", "on a grassy field"),
    "sea": ("on the sea", "out at sea", "on the waves"),
    "night": ("at night", "under the stars", "in the night sky"),
}
