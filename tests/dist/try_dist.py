"""Build wheel and sdist, install the wheel in a new environment, and use it there, away from the repository.

    python tests/dist/try_dist.py [folder for dist]

Run by `make dist`. Fails on the first command that fails.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command, show it, and give its output; its failure ends the program."""
    print("$", *command, flush=True)
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, stdout=subprocess.PIPE)
    print(done.stdout[-2000:], flush=True)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}")
    return done.stdout


def main(dist: Path) -> None:
    """Build, look inside, install, use."""
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT, cwd=ROOT)
    wheel, sdist = max(dist.glob("ecl2o-*.whl"), key=_age), max(dist.glob("ecl2o-*.tar.gz"), key=_age)
    inside = set(zipfile.ZipFile(wheel).namelist())
    for needed in ("ecl2o/py.typed", "ecl2o/service/http/static/page.css", "ecl2o/service/http/templates/base.html"):
        assert needed in inside, f"{needed} is not in {wheel.name}"
    assert not [name for name in inside if name.startswith(("tests/", "docs/"))]
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("src/ecl2o/__init__.py") for name in archive.getnames())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        python, ecl2o = home / "env/bin/python", home / "env/bin/ecl2o"
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=home)
        where = run(python, "-c", "import ecl2o; print(ecl2o.__file__)", cwd=home)
        assert where.startswith(str(home)), f"the repository was used: {where}"
        for number, block in enumerate(BLOCK.findall(readme)):
            (home / f"readme{number}.py").write_text(block, encoding="utf-8")
            run(python, f"readme{number}.py", cwd=home)
        run(ecl2o, "reproduce", "--quick", "--out", home / "results", cwd=home)
    print(f"{wheel.name} and {sdist.name}: built, installed and used")


def _age(path: Path) -> float:
    return path.stat().st_mtime


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
