"""Servers that work together: every clash is named."""

from dataclasses import replace

import pytest

from dsv4_rocm.recipes.pair import lint_pair


def changed(argv, old, new):
    assert old in argv
    return tuple(new if word == old else word for word in argv)


def without(argv, flag):
    at = argv.index(flag)
    return argv[:at] + argv[at + 2 :]


# case -> (change of the second server, change of the router, the message)
CLASHES = {
    "port": (lambda s: replace(s, argv=changed(s.argv, "8001", "8000")), None, "both serve on port 8000"),
    "bootstrap port": (
        lambda s: replace(s, env={**s.env, "VLLM_MOONCAKE_BOOTSTRAP_PORT": "8998"}),
        None,
        "both use VLLM_MOONCAKE_BOOTSTRAP_PORT=8998",
    ),
    "default bootstrap port": (
        lambda s: replace(s, env={k: v for k, v in s.env.items() if "BOOTSTRAP" not in k}),
        None,
        "both use VLLM_MOONCAKE_BOOTSTRAP_PORT=8998",
    ),
    "device": (lambda s: replace(s, env={**s.env, "CUDA_VISIBLE_DEVICES": "3,4,5,6"}), None, "both use GPU 3"),
    "all devices": (
        lambda s: replace(s, env={k: v for k, v in s.env.items() if "VISIBLE" not in k}),
        None,
        "sees all GPUs, those of the other server too; set CUDA_VISIBLE_DEVICES",
    ),
    "no connector": (lambda s: replace(s, argv=without(s.argv, "--kv-transfer-config")), None, "no KV is passed on"),
    "other connector": (
        lambda s: replace(s, argv=tuple(word.replace("MooncakeConnector", "NixlConnector") for word in s.argv)),
        None,
        "the servers use different connectors",
    ),
    "other model": (
        lambda s: replace(s, argv=(s.argv[0] + "-0731", *s.argv[1:])),
        None,
        "the servers must serve one model",
    ),
    "other rows": (
        lambda s: replace(s, argv=changed(s.argv, "fp8", "bfloat16")),
        None,
        "--kv-cache-dtype must be equal",
    ),
    "router asks elsewhere": (None, ("http://localhost:8001", "http://localhost:8002"), "none of the servers listens"),
    "router's port": (None, ("30000", "8000"), "the router and k7-mooncake/0 both listen on port 8000"),
    "router's connector": (None, ("mooncake", "nixl"), "the router passes KV by nixl"),
    "router's data parallel size": (None, ("4", "8"), "--intra-node-data-parallel-size 8, and"),
}


@pytest.mark.parametrize(("server", "words", "message"), CLASHES.values(), ids=CLASHES.keys())
def test_clash(server, words, message, published, answers, router):
    subjects = [published["k7-mooncake", 0], published["k7-mooncake", 1]]
    told = [answers[one.key] for one in subjects]
    if server is not None:
        subjects[1] = server(subjects[1])
    asked = router["k7-mooncake"]
    if words is not None:
        asked = changed(asked, *words)
    found = lint_pair(subjects, told, asked)
    assert any(message in one.message for one in found), found
    assert {one.level for one in found} == {"error"}


def test_two_producers_have_nobody_to_take_it(published, answers):
    subjects = [
        replace(one, argv=tuple(word.replace("kv_both", "kv_producer") for word in one.argv))
        for one in (published["k7-nixl", 0], published["k7-nixl", 1])
    ]
    (found,) = lint_pair(subjects, [answers[one.key] for one in subjects])
    assert found.message.startswith("all servers are kv_producer")
