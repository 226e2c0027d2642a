"""Labels that no policy sets, because others act by them: one list for the schema, the records and admission."""

from __future__ import annotations

from pathlib import Path

from nodedevices_api.sections import (
    RESERVED_LABEL_DOMAINS,
    RESERVED_LABEL_KEYS,
    RESERVED_LABEL_PATTERN,
    reserved_label,
)
from nodedevices_operator.records.neighbours import SIGNS, Place
from support.cases import cases
from support.opfacts import device, feature_labels, record

ROOT = Path(__file__).parents[2]


@cases("key", *[sign.key for sign in SIGNS if sign.place is Place.LABEL])
def test_no_policy_sets_what_the_operator_itself_takes_for_a_sign(key: str) -> None:
    assert reserved_label(key)


@cases("domain", *RESERVED_LABEL_DOMAINS)
def test_a_domain_is_reserved_with_its_subdomains_and_no_other_that_ends_alike(domain: str) -> None:
    assert reserved_label(f"{domain}/a")
    assert reserved_label(f"x.{domain}/a")
    assert not reserved_label(f"{domain}.example.com/a")
    assert not reserved_label(f"example.com/{domain}")


@cases("key", *RESERVED_LABEL_KEYS)
def test_a_key_is_reserved_with_all_that_begin_so(key: str) -> None:
    assert reserved_label(key)
    assert reserved_label(f"{key}more")
    assert not reserved_label(f"my{key}")


def test_admission_refuses_the_operator_the_same_labels_and_none_of_feature_discovery() -> None:
    found = feature_labels(record(device(0, attributes={"vendor": "nvidia", "productName": "NVIDIA H100"})))
    assert found
    assert [key for key in found if reserved_label(key)] == []
    text = (ROOT / "manifests/base/admission/operator-own-keys.yaml").read_text()
    assert f"'{RESERVED_LABEL_PATTERN}'" in text


@cases("name", *RESERVED_LABEL_DOMAINS, *RESERVED_LABEL_KEYS)
def test_the_page_names_them_all(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs/security.md").read_text()
