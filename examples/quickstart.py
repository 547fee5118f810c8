"""Train a ResNet on JPEG files: slow, as first versions often are, or with the data loading repaired (``--fixed``).

The script writes the JPEG files itself, into ``--data``, and downloads nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms import v2

from lightning_perf import PerfCallback

CLASSES = 10
PHOTO_SIZE = (1280, 960)
INPUT_SIZE = 32
CORES = os.cpu_count() or 1
WORKERS = min(8, CORES)


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Photos and their classes, each decoded when it is asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(INPUT_SIZE),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as photo:
            return self.transform(photo.convert("RGB")), index % CLASSES


class ResNet18(LightningModule):
    """A small ResNet with random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.model = resnet18(num_classes=CLASSES)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Loss of one batch."""
        photos, classes = batch
        return cross_entropy(self.model(photos), classes)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def slow_loader(photos: Photos, batch_size: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """What one writes first: the training thread decodes every photo while the model waits."""
    return DataLoader(photos, batch_size=batch_size, shuffle=True)


def fixed_loader(photos: Photos, batch_size: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Worker processes decode the next batches while the model trains on this one."""
    return DataLoader(
        photos,
        batch_size=batch_size,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=torch.cuda.is_available(),
    )


def train(loader: DataLoader[tuple[torch.Tensor, int]], epochs: int, baseline: str | None = None) -> str | None:
    """Train once: the callback shows its summary, and the comparison with ``baseline``. Where the run's files are."""
    perf = PerfCallback(baseline=baseline)
    trainer = Trainer(
        max_epochs=epochs,
        devices=1,
        callbacks=[perf],
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ResNet18(), loader)
    return trainer.log_dir


def write_photos(folder: Path, count: int) -> list[Path]:
    """Paths of ``count`` JPEG files, the same on every machine. Those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05}.jpg" for number in range(count)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        print(f"writing {len(missing)} photos to {folder} ...", flush=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_write_photo, missing))
    return paths


def _write_photo(path: Path) -> None:
    """Smooth colours that depend on the class, and the fine noise that makes a real photo slow to decode."""
    number = int(path.stem)
    random = np.random.default_rng(number)
    coarse = random.integers(0, 200, (6, 8, 3), dtype=np.uint8)
    coarse[..., number % 3] //= 1 + number % CLASSES
    smooth = np.asarray(Image.fromarray(coarse).resize(PHOTO_SIZE, Image.Resampling.BICUBIC))
    noise = random.integers(0, 48, smooth.shape, dtype=np.uint8)
    unfinished = path.with_suffix(".part")
    Image.fromarray(np.minimum(smooth, 255 - 48) + noise).save(unfinished, "JPEG", quality=90)
    unfinished.replace(path)


def hush_lightning() -> None:
    """Leave the screen to the summary."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers")  # the slow run: so it is, on purpose
    warnings.filterwarnings("ignore", ".*LeafSpec")  # Lightning 2.6 calls what torch 2.14 deprecates


def main() -> None:
    """Train slow, fixed, or first the one and then the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fixed", action="store_true", help="decode in worker processes")
    which.add_argument("--compare", action="store_true", help="train slow, then fixed, and compare them")
    parser.add_argument("--data", type=Path, default=Path("demo_data"), help="folder of the photos (%(default)s)")
    parser.add_argument("--photos", type=int, default=192, help="how many photos (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="photos in a batch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the photos (%(default)s)")
    options = parser.parse_args()

    hush_lightning()
    # In both runs, so that only the loader differs: on few cores, torch's threads and the workers fight for them.
    torch.set_num_threads(max(1, CORES - WORKERS))
    photos = Photos(write_photos(options.data, options.photos))
    if not options.compare:
        make_loader = fixed_loader if options.fixed else slow_loader
        train(make_loader(photos, options.batch_size), options.epochs)
        return
    print("training, slow: the training thread decodes the photos ...", flush=True)
    slow = train(slow_loader(photos, options.batch_size), options.epochs)
    print("\ntraining, fixed: worker processes decode the photos ...", flush=True)
    train(fixed_loader(photos, options.batch_size), options.epochs, baseline=slow)


if __name__ == "__main__":
    main()
