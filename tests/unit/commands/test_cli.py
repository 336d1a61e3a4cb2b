import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

import fake_results as fake
from command_line import parabench
from parabench.cli import main


def test_best_names_a_session_without_a_launch(tmp_path):
    fake.write(tmp_path / "r.db", [], label="nightly")
    done = parabench("best", tmp_path / "r.db")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nightly has no launch yet; wait for the first" in done.stderr


def test_best_imports_no_torch_scipy_or_templates(tmp_path):
    """Importing each of these takes longer than the rest of the command."""
    fake.family(tmp_path / "r.db")
    code = (
        "import sys\nfrom parabench.cli import main\n"
        f"main(['best', {str(tmp_path / 'r.db')!r}, '--json', '-'], standalone_mode=False)\n"
        "assert not {'torch', 'scipy', 'jinja2', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_at_any_moment_ends_with_its_code(monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("parabench.commands.list.give", interrupted)
    done = CliRunner().invoke(main, ["list"])
    assert (done.exit_code, done.output) == (130, "parabench: stopped\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rprot", "report"),
        ("best base.db --objective memoy", "memory"),
        ("best base.db@nigthly", "nightly"),
        ("compare base.db other.db --changed cup", "cpu"),
        ("history base.db --case dpd", "ddp"),
        ("export base.db --format becher", "bencher"),
        ("predict base.db --world-size 8 --link nodee=1GB/s,1us", "node"),
        ("collectives --dtype float23", "float32"),
        ("run quick --set precision=bf16-mixd", "bf16-mixed"),
        ("run quick --set strategy=pp --set schedule=gpip", "gpipe"),
        ("run quick --data mnits:x", "mnist:x"),
        ("run quick --nnodes 2 --rdzv-endpoint localhost:29500 --interface llo", "lo"),
        ("init --model gpt-nanno", "gpt-nano"),
    ],
)
def test_error_suggests_the_nearest_name(tmp_path, monkeypatch, typed, meant):
    monkeypatch.chdir(tmp_path)
    fake.write(tmp_path / "base.db", [fake.launch(fake.case())], label="nightly")
    fake.write(tmp_path / "other.db", [fake.launch(fake.case())], environment=fake.ENVIRONMENT | {"cpu": "Other CPU"})
    done = parabench(*shlex.split(typed))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    assert re.search(rf"did you mean '{re.escape(meant)}'( or '[^']+')*\?", done.stderr), done.stderr
