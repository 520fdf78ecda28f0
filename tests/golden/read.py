"""Read the golden cache with the yogadl that is installed; `tests/release.py` runs this in each Python."""

import shutil
import sys
import tempfile
from pathlib import Path

FINGERPRINT = "cd9b5cefa8a3aff8822e2ae7ff112a48"
DIGEST = "8d9b3463d4f1ea6ffab5afa0a8ba7681bf734a98a9f6880ef067163aea8918bd"


def main() -> None:
    """Check the files, read each record, and build a cache of what was read, which must be the same."""
    import yogadl

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(__file__).parent / "v1", Path(folder, "v1"))
        storage = yogadl.open_storage(Path(folder, "v1"))
        records = list(storage.fetch("golden/forms", "1", digest=DIGEST))
        if storage.verify("golden/forms", "1").records != len(records):
            sys.exit("the golden cache has other records than its files say")
        storage.submit(records, "golden/again", "1")
        if storage.fetch("golden/again", "1").fingerprint != FINGERPRINT:
            sys.exit("the records of the golden cache are not what was written")
    print(f"yogadl {yogadl.__version__} of {Path(yogadl.__file__).parent}: {len(records)} golden records")


if __name__ == "__main__":
    main()
