"""What users call stays as it is written down; a framework's modules are looked at where it is installed."""

import public_api
import pytest


@pytest.mark.parametrize("name", public_api.CORE)
def test_a_module_offers_what_is_written_down(name):
    public_api.check(name)


def test_every_public_module_is_written_down():
    written = {path.stem for path in public_api.WRITTEN.glob("*.txt")}
    assert written == {*public_api.CORE, *public_api.FRAMEWORKS}
