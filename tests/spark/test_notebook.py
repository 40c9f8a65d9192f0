"""The notebook of the documentation runs from first to last cell, and finds what it sent."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from cometmq.spark.compat import passes_limits

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "spark.ipynb"


@pytest.mark.long  # the pages show the same programs
@pytest.mark.local_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_notebook_runs_and_its_figures_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})

    client.execute()

    said = {
        cell["source"].splitlines()[-1]: output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    }
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", ())
    ]
    assert len(pictures) == 3
    if passes_limits():
        assert said == {
            "batches, sum(batches)": "([100, 100, 100, 100, 100], 500)",
            "second, copied": "(1, 501)",
            "held": "501",
            "faults": "{'gaps': 0, 'duplicates': 0, 'compare': 0}",
            "finding_counts": "{'missing-there': 20, 'differs': 10}",
        }
    else:  # each run has one batch
        assert said["batches, sum(batches)"] == "([100], 100)"


def test_the_notebook_is_kept_without_what_it_printed() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    assert all(not cell.get("outputs") for cell in notebook.cells)
