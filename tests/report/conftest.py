"""A real run on the digits, short enough for a test, and a real browser if there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import penni
from penni.data import open_data
from penni.data.source import ArraySource
from penni.recipes.load import from_dictionary

RECIPE = {
    "name": "report-test",
    "about": "A run for <tests> & nothing else",
    "model": "small",
    "data": "digits",
    "decompose": {"bases": 4},
    "retrain": {"epochs": 4, "learning_rate": 0.02, "interval": 1, "pull": 0.1, "unit_norm": True},
    "prune": {"density": 0.2},
    "finetune": {"epochs": 2, "learning_rate": 0.02},
}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # layers this small only wait for each other on more
    data = open_data("digits")
    assert isinstance(data, ArraySource)
    data.train_images, data.train_labels = data.train_images[:256], data.train_labels[:256]
    data.test_images, data.test_labels = data.test_images[:100], data.test_labels[:100]
    folder = tmp_path_factory.mktemp("runs") / "run"
    penni.compress(penni.build("small"), data, from_dictionary(RECIPE), folder)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture(scope="session")
def written_report(finished_run: Path) -> Path:
    from penni.report import write

    return write(finished_run)


@pytest.fixture
def browser() -> Iterator[Any]:
    """Headless Chromium, with its console kept."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'penni[dev]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    # Nothing may be fetched: an offline browser would show it as an error in the console.
    session.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    session.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield session
    session.quit()
