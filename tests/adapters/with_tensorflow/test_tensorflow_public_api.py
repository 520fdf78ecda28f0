"""What users call of yogadl.adapters.tensorflow, and by its old name, stays as it is written down."""

import public_api
import pytest


@pytest.mark.parametrize("name", ["yogadl.adapters.tensorflow", "yogadl.tensorflow"])
def test_it_offers_what_is_written_down(name):
    public_api.check(name)
