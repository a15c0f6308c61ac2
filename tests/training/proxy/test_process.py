"""The proxy as a process: what is refused at its start, and what a kill leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest

from training.proxy.__main__ import main
from training.proxy.records import CallStore

from ..vision_models import picture
from .conftest import READER, RunningProxy
from .test_calls import with_image


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "can be reached from outside: give a key"),
        (["--api-key", "NO_SUCH_KEY"], "the variable NO_SUCH_KEY is not set"),
        (["--checkpoint", "nowhere"], "nowhere is no Hugging Face checkpoint folder"),
        (["--temperature", "7"], "--temperature: Input should be less than or equal to 5"),
        (["--image-pixels", "many"], "--image-pixels: Input should be a valid integer"),
        (["--host", "192.0.2.1", "--api-key", "PATH"], "nothing can listen at 192.0.2.1, port 0"),
        (["--server", "http://127.0.0.1:9"], "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_a_start_that_cannot_serve_says_why(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--checkpoint", str(READER), "--root", str(tmp_path / "foreign"), "--port", "0", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.chaos
def test_a_kill_in_the_middle_leaves_whole_records(tmp_path: Path) -> None:
    """Four agents call while the process is killed: every file that is there is whole and has its
    images, and every answered call is there."""
    command = [sys.executable, "-m", "training.proxy", "--checkpoint", str(READER), "--root", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(READER.parents[2])}
    process = subprocess.Popen([*command, "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        proxy = RunningProxy(address, CallStore(tmp_path))
        answered: list[tuple[str, int]] = []

        def play(name: str) -> None:
            client = proxy.client(name)
            for number in range(1000):
                message = with_image(picture((160, 210), number))
                try:
                    answer = client.chat.completions.create(model="policy", messages=[message], max_tokens=16)
                except openai.APIConnectionError:
                    return
                answered.append((name, int(answer.id.rsplit("-", 1)[1])))

        threads = [threading.Thread(target=play, args=(f"agent{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        while len(answered) < 12:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    found = {(call.session, call.index) for n in range(4) for call in proxy.calls(f"agent{n}")}
    assert found >= set(answered)
    for number in range(4):
        for call in proxy.calls(f"agent{number}"):
            assert len(call.response_ids) == len(call.logprobs) and len(call.images) == 1
            assert proxy.store.run.blob(call.images[0])
