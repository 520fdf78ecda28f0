"""What users call of yogadl.adapters.torch stays as it is written down."""

import public_api


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.torch")


def test_the_module_for_lightning_offers_what_is_written_down():
    public_api.check("yogadl.adapters.lightning")


def test_the_adapter_of_transformers_offers_what_is_written_down():
    public_api.check("yogadl.adapters.transformers")
