"""A birth certificate says what is needed to make a figure again."""

from __future__ import annotations

import sys

import pytest
import torch

from draftwing.core.provenance import Provenance, here


def test_the_certificate_names_command_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/draftwing", "bench", "--limit", "3"])
    certificate = here(threads=2)
    assert certificate.command == ["draftwing", "bench", "--limit", "3"]
    assert certificate.packages["torch"] == torch.__version__
    assert certificate.threads == 2
    assert certificate.machine.cores >= 1
    assert certificate.machine.model
    assert Provenance.model_validate_json(certificate.model_dump_json()) == certificate
