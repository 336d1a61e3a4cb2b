"""The fork server while it still imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from guard import GUARD_S
from paths import ROOT

# In the place of torch: an import that says which process it is in, and never ends.
ENDLESS = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import parabench.launch.preload'])"


def test_server_ends_with_a_driver_that_is_killed_early(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(ENDLESS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = psutil.Process(int(driver.stdout.readline()))
        try:
            driver.send_signal(signal.SIGKILL)
            _, alive = psutil.wait_procs([server], timeout=GUARD_S)
            assert not alive
        finally:
            if server.is_running():
                server.kill()
