"""The examples of the page about Beam and Spark run, by themselves: Spark starts a Java process."""

import os
import shutil
import subprocess
import sys

import pages
import pytest


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_the_examples_of_the_page_run(tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(pages.blocks("howto/beam-spark.md")))
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True)
