"""What users call of yogadl.adapters.grain stays as it is written down."""

import public_api


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.grain")
