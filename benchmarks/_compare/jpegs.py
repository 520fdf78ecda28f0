"""JPEGs about as large as photos, and the work of training on them: decode, RandomResizedCrop(224), flip."""

from typing import Any

import numpy as np

SIZE = 224
HEIGHT, WIDTH = 375, 500


def pictures(count: int) -> list[bytes]:
    """Return JPEGs of smooth noise; some hundred are made, and come again."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(0)
    made = []
    for _ in range(min(count, 200)):
        coarse = rng.integers(0, 256, (48, 64, 3), np.uint8)
        smooth = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC).astype(np.int16)
        picture = np.clip(smooth + rng.normal(0, 5, smooth.shape), 0, 255).astype(np.uint8)
        made.append(simplejpeg.encode_jpeg(picture, quality=90))
    return [made[number % len(made)] for number in range(count)]


def crop(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Return a random crop as torchvision's RandomResizedCrop draws it: top, left, height, width."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < high <= height:
            return int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1)), high, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def decode_into(jpeg: bytes, rng: np.random.Generator, image: np.ndarray[Any, Any]) -> None:
    """Decode, crop and flip into an array, by simplejpeg and OpenCV."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)
    whole = simplejpeg.decode_jpeg(jpeg)
    top, left, high, wide = crop(rng, *whole.shape[:2])
    part = whole[top : top + high, left : left + wide]
    cv2.resize(part, (SIZE, SIZE), dst=image, interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.5:
        cv2.flip(image, 1, dst=image)
