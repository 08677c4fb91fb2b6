"""Each peer is installed once, from pinned versions, into a folder of its own in the cache."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from headwater.local import jars
from ingestion.settings import Settings

HERE = Path(__file__).parent


def peer_jars(settings: Settings, peer: str, name: str) -> Path:
    """The folder of one of the jar sets in jars.toml."""
    own = settings.model_copy(update={"cache": _folder(settings, peer)})
    with patch.object(jars, "PINS", HERE / "jars.toml"):
        return jars.ensure_jars(own, [name])[0]


def peer_python(settings: Settings, peer: str, version: str) -> Path:
    """A Python with what the peer's requirements file names."""
    requirements = HERE / f"{peer}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = _folder(settings, peer) / f"python-{digest}"
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--python", version, str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--system-certs", "--python", str(python)]
        subprocess.run([*install, "--no-deps", "--requirements", str(requirements)], check=True)
        installed.touch()
    return python


def _folder(settings: Settings, peer: str) -> Path:
    return settings.cache / "peers" / peer
