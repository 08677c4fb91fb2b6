"""The tutorial, done as it says: its files are written, its commands are run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ROOT, clean_environment

# A file is named in the line before its block; what a command must print follows in a `text` block.
BLOCK = re.compile(r"(?:`(?P<file>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".headwater", "target", "logs", "*_cache")


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(
    spark: SparkSession, stack: dict[str, str], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT, project, symlinks=True, ignore=LEFT_OUT)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**clean_environment(), **stack, "PATH": path, "COLUMNS": "200"}
    printed, written, shown = "", [], 0

    def shell(command: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=project, env=env, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert done.returncode == 0, command + done.stdout + done.stderr
        return done.stdout

    for found in BLOCK.finditer((ROOT / "docs" / "tutorial.md").read_text()):
        file, kind, text = found["file"], found["kind"], found["text"]
        if file:
            written.append(file)
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            (project / file).write_text(text)
        elif kind == "bash":
            printed = shell(text)
        else:
            shown += 1
            for line in text.splitlines():
                assert " ".join(line.split()) in " ".join(printed.split()), printed
    assert len(written) == 5
    assert shown == 2
    shell("sqlfluff lint " + " ".join(file for file in written if file.endswith(".sql")))
    shell("yamllint --strict " + " ".join(file for file in written if file.endswith(".yml")))
    for table in ("bronze.lines", "silver.stg_lines__lines", "gold.fct_word_counts"):
        spark.sql(f"drop table lake.{table} purge")
