"""The real operator and the real kube-apiserver: DevicePolicies become the nodes' configuration."""

from __future__ import annotations

import time
from typing import Any

from support.fleet import FleetNode, policy
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess

FOUR = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
TWO = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}


def resolved(node: FleetNode) -> dict[str, Any]:
    return condition(node.object, "PolicyResolved")


def config(node: FleetNode) -> dict[str, Any] | None:
    found: dict[str, Any] | None = node.object.get("spec", {}).get("config")
    return found


def test_a_node_that_no_policy_selects_is_resolved_to_an_empty_configuration(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    wait_until("resolved", lambda: resolved(node).get("reason") == "NoPolicy")
    spec = node.object["spec"]
    assert spec["config"] == {}
    assert len(spec["configHash"]) == 16


def test_a_policy_reaches_the_nodes_that_it_selects_and_says_so(operator: OperatorProcess, kubectl: Kubectl) -> None:
    chosen = FleetNode(kubectl, "n1").create({"pool": "a"})
    other = FleetNode(kubectl, "n2").create({"pool": "b"})
    kubectl.apply(policy("shared", {"pool": "a"}, sharing=FOUR))
    wait_until("configuration", lambda: config(chosen) == {"sharing": FOUR})
    entry = chosen.object["spec"]["policies"][0]
    assert (entry["name"], entry["priority"], entry["sections"]) == ("shared", 0, ["sharing"])
    wait_until("other node", lambda: config(other) == {})
    wait_until("progress", lambda: condition(kubectl.get("dp", "shared"), "Applied").get("reason") == "Progressing")
    chosen.report(applied_hash=chosen.object["spec"]["configHash"])
    wait_until("applied", lambda: condition(kubectl.get("dp", "shared"), "Applied").get("status") == "True")
    status = (kubectl.get("dp", "shared") or {})["status"]
    assert status["nodes"] == {"selected": 1, "applied": 1, "overridden": 0, "failed": 0}
    kubectl.delete("dp", "shared")
    wait_until("taken back", lambda: config(chosen) == {})


def test_a_policy_says_which_node_it_waits_for_and_whom_it_has_to_correct(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    def reported(name: str) -> tuple[str, str]:
        found = condition(kubectl.get("dp", name), "Applied")
        return found.get("reason", ""), found.get("message", "")

    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("strong", priority=10, sharing=TWO), policy("weak", sharing=FOUR))
    kubectl.apply(policy("other", health={"holdDownSeconds": 5}))
    wait_until("merged", lambda: config(node) == {"sharing": TWO, "health": {"holdDownSeconds": 5}})
    quiet = ("Progressing", "in effect on 0 of 1 nodes; n1: its agent has not applied it yet")
    wait_until("no answer yet", lambda: reported("strong") == quiet)

    why = "the change of nvidia.com/gpu waits until these pods have ended: team-a/train-0"
    node.conditions["ConfigApplied"] = ("False", "WaitingForHolders", why)
    node.report()
    for name in ("strong", "other"):
        wait_until(
            f"why {name} waits",
            lambda n=name: reported(n) == ("Progressing", f"in effect on 0 of 1 nodes; n1: {why}"),  # type: ignore[misc]
        )

    wrong = "sharing.resources[nvidia.com/gpu].replicas: 2: too many; the previous configuration stays in effect"
    node.conditions["ConfigApplied"] = ("False", "ConfigInvalid", wrong)
    node.facts["configuration"] = {"refusals": [{"section": "sharing", "message": wrong}]}
    node.report()
    wait_until("the one to correct", lambda: reported("strong") == ("Failed", f"1 of 1 nodes: n1: {wrong}"))
    wait_until("one beside it", lambda: reported("other") == ("Progressing", f"in effect on 0 of 1 nodes; n1: {wrong}"))
    assert reported("weak")[0] == "NoNodes"
    assert (kubectl.get("dp", "weak") or {})["status"]["nodes"]["failed"] == 0


def test_a_weaker_policy_supplies_only_the_sections_that_the_stronger_leaves_out(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(
        policy("strong", priority=10, sharing=TWO),
        policy("weak", priority=-10, sharing=FOUR, health={"holdDownSeconds": 5}),
    )
    wait_until("merged", lambda: config(node) == {"sharing": TWO, "health": {"holdDownSeconds": 5}})
    wait_until("counted", lambda: (kubectl.get("dp", "weak") or {})["status"]["nodes"]["overridden"] == 1)
    kubectl.delete("dp", "strong")
    wait_until("the weak one alone", lambda: (config(node) or {}).get("sharing") == FOUR)


def test_of_two_equally_strong_policies_the_older_stays_and_the_younger_is_reported(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("a-older", sharing=TWO))
    wait_until("the older one", lambda: (config(node) or {}).get("sharing") == TWO)
    time.sleep(1.1)  # creationTimestamp has whole seconds
    kubectl.apply(policy("a-a-younger", sharing=FOUR))
    wait_until("reported", lambda: condition(kubectl.get("dp", "a-a-younger"), "Conflicted").get("status") == "True")
    assert (config(node) or {})["sharing"] == TWO
    assert resolved(node)["reason"] == "Conflict"
    assert condition(kubectl.get("dp", "a-older"), "Conflicted")["status"] == "False"


def test_a_dry_run_says_what_it_would_change_and_changes_nothing(operator: OperatorProcess, kubectl: Kubectl) -> None:
    node = FleetNode(kubectl, "n1").create()
    node.hold(0, "trainer")
    node.fail(0)
    wait_until("resolved", lambda: config(node) == {})
    node.report(applied_hash=node.object["spec"]["configHash"])
    faults = {"taintEffect": "NoSchedule", "evict": {"mode": "Immediate"}, "budget": {"perHour": 1}}
    kubectl.apply(policy("trial", mode="DryRun", sharing=TWO, faults=faults))
    wait_until("named", lambda: "ids of" in condition(kubectl.get("dp", "trial"), "Applied").get("message", ""))
    reported = condition(kubectl.get("dp", "trial"), "Applied")
    assert condition(kubectl.get("dp", "trial"), "Accepted")["status"] == "True"
    assert (reported["status"], reported["reason"]) == ("False", "DryRun")
    assert reported["message"] == (
        "it would be active on 1 of 1 nodes (kubectl nodedevices policy dry-run counts ids); n1: would change sharing, "
        "faults (ids of nvidia.com/gpu; held by fleet/trainer: these keep what they hold until they end), would evict "
        "fleet/trainer, would not taint the Node NoSchedule for Xid79: the budget of policy trial allows 1 actions an "
        "hour (perHour), and as many were granted within the last hour"
    )
    assert config(node) == {}
    assert not [it for it in node.node["spec"].get("taints", []) if it["key"].startswith("nodedevices.io")]


def test_policies_that_do_not_fit_together_keep_what_was_in_effect_and_say_so_on_both(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("shared", sharing=FOUR))
    wait_until("in effect", lambda: config(node) == {"sharing": FOUR})
    kubectl.apply(policy("owner", capacity=[{"name": "nvidia.com/gpu", "perNode": 3}]))
    wait_until("said on the node", lambda: resolved(node).get("reason") == "PolicyInvalid")
    assert config(node) == {"sharing": FOUR}
    for name in ("shared", "owner"):
        wait_until(
            f"said on {name}",
            lambda n=name: condition(kubectl.get("dp", n), "Applied").get("reason") == "Failed",  # type: ignore[misc]
        )


def test_a_node_label_chooses_the_configuration_file_and_counts_in_the_hash(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    before = wait_until("the hash of no policy", lambda: config(node) == {} and node.object["spec"]["configHash"])
    kubectl.run("label", "node", "n1", "nvidia.com/device-plugin.config=shared")
    wait_until("name", lambda: node.object["spec"].get("configName") == "shared")
    assert node.object["spec"]["configHash"] != before
    kubectl.run("label", "node", "n1", "nvidia.com/device-plugin.config-")
    wait_until("no name", lambda: "configName" not in node.object["spec"])
    assert node.object["spec"]["configHash"] == before


def test_what_somebody_else_writes_into_our_part_of_the_spec_is_put_right(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    node = FleetNode(kubectl, "n1").create()
    kubectl.apply(policy("shared", sharing=FOUR))
    wait_until("in effect", lambda: config(node) == {"sharing": FOUR})
    patch = {"spec": {"config": {"sharing": {"strategy": "none", "resources": None}}}}
    kubectl.patch("nd", "n1", patch)
    wait_until("put right", lambda: config(node) == {"sharing": FOUR})
