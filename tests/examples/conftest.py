"""Let a failed assertion of what these tests share say what it compared, and let JAX compile a step once."""

import pytest

pytest.register_assert_rewrite("example_contract", "example_jobs")


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Name a folder where JAX keeps what it has compiled, for the next process that runs the same script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield
