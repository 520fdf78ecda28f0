"""The examples of the pages about Ray run, by themselves: each starts and ends a cluster."""

import subprocess
import sys

import pages
import public_api
import pytest


@pytest.mark.parametrize("page", ["howto/ray.md", "stories/many_tasks.md"])
def test_the_examples_of_a_page_run(page, tmp_path):
    script = tmp_path / "page.py"
    start = 'ray.init(address="local", log_to_driver=False, num_cpus=2'
    script.write_text("\n".join(pages.blocks(page)).replace("ray.init(num_cpus=2", start))
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True)


def test_it_offers_what_is_written_down():
    public_api.check("yogadl.adapters.ray")
