"""What users call of yogadl.adapters.arrays and .datasets stays as it is written down."""

import public_api


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.arrays")
    public_api.check("yogadl.adapters.datasets")
