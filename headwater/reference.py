"""Files that repeat what the code declares, written from it so that each thing is described once.

`python -m headwater.reference` writes them; with `--check` it only says whether they are current.
"""

import re
import sys
from pathlib import Path

import click

from ingestion.settings import is_secret, known_variables, project_root
from ingestion.stream_file import load_streams
from ingestion.table import HEADERS, SYSTEM_COLUMNS

README_BLOCK = re.compile(r"(<!-- settings -->\n).*?(<!-- /settings -->)", re.DOTALL)


def doc_blocks() -> str:
    """dbt doc blocks with the words of the stream files, for bronze and the layers above it."""
    blocks = {one.name: one.description for one in (*SYSTEM_COLUMNS, HEADERS)}
    for stream in load_streams(folder=project_root() / "ingestion" / "streams"):
        blocks[f"bronze_{stream.name}"] = stream.description
        for name, column in stream.columns.items():
            blocks[f"{stream.name}__{name}"] = column.description
    head = "<!-- Written by `python -m headwater.reference` from ingestion/streams/*.yml. -->\n"
    return head + "".join(
        f"\n{{% docs {name} %}}\n{text.strip()}\n{{% enddocs %}}\n" for name, text in blocks.items()
    )


def env_example() -> str:
    lines = [
        "# Every setting with its default. Copy to .env and change what you need; variables of the",
        "# environment win over this file. Written by `python -m headwater.reference`.",
    ]
    for name, field in known_variables().items():
        if is_secret(field):
            continue
        default = "" if field.default is None else str(field.default)
        lines += ["", f"# {field.description}", f"#{name}={default}"]
    return "\n".join(lines) + "\n"


def settings_table() -> str:
    rows = ["| variable | default | what it is |", "|---|---|---|"]
    for name, field in known_variables().items():
        default = f"`{field.default}`" if field.default is not None else "unset"
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def files(root: Path) -> dict[Path, str]:
    readme = root / "README.md"
    return {
        root / "models" / "bronze" / "_streams__docs.md": doc_blocks(),
        root / ".env.example": env_example(),
        readme: README_BLOCK.sub(
            lambda match: match[1] + settings_table() + match[2], readme.read_text()
        ),
    }


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when a file is not current.")
def main(check: bool) -> None:
    root = project_root()
    stale = [
        file for file, text in files(root).items() if not file.exists() or file.read_text() != text
    ]
    for file in stale:
        name = file.relative_to(root)
        if check:
            click.echo(f"✗ {name} is not current → run: python -m headwater.reference", err=True)
        else:
            file.write_text(files(root)[file])
            click.echo(f"wrote {name}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
