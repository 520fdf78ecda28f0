"""One small Ray cluster on this machine for all tests."""

import os
from pathlib import Path

import pytest
import ray

# Where Ray's workers find the modules that functions of tests belong to.
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def cluster():
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
