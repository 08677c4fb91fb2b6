from headwater.reference import files
from tests.conftest import ROOT


def test_generated_files_are_current() -> None:
    for file, text in files(ROOT).items():
        assert file.read_text() == text, f"run: python -m headwater.reference ({file.name})"
