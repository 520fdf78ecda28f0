"""Let a failed assertion of what these tests share say what it compared."""

import pytest

pytest.register_assert_rewrite("example_contract", "example_jobs")
