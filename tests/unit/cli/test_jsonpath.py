r"""Templates of `-o jsonpath=`. The object and its texts are those with which kubectl's documentation explains them."""

import pytest

from cli.printing.jsonpath import Template

NODES = {
    "kind": "List",
    "items": [
        {
            "metadata": {"name": "127.0.0.1", "labels": {"kubernetes.io/hostname": "127.0.0.1"}},
            "status": {"capacity": {"cpu": "4"}, "ready": True, "slots": 1, "addresses": ["a", "b", "c"]},
        },
        {"metadata": {"name": "127.0.0.2"}, "status": {"capacity": {"cpu": "8"}, "ready": False, "slots": 4}},
    ],
    "users": [{"name": "myself", "user": {}}, {"name": "e2e", "user": {"username": "admin", "password": "secret"}}],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.kind}", "List"),
        ("{$.kind}", "List"),
        ("{kind}", "List"),
        ("{['kind']}", "List"),
        ("kind is {.kind}!", "kind is List!"),
        ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.items[0]['metadata.name']}", "127.0.0.1"),
        (r"{.items[*].metadata.labels['kubernetes\.io/hostname']}", "127.0.0.1"),
        (r"{.items[*].metadata.labels.kubernetes\.io/hostname}", "127.0.0.1"),
        ("{.users[-1].name}", "e2e"),
        ("{.users[9].name}", ""),
        ("{.items[0].status.addresses[0:2]}", "a b"),
        ("{.items[0].status.addresses[::2]}", "a c"),
        ("{.items[0].status.addresses}", '["a","b","c"]'),
        ("{.items[*].status.capacity}", '{"cpu":"4"} {"cpu":"8"}'),
        ("{.items[*].status.capacity.*}", "4 8"),
        ("{..name}", "127.0.0.1 127.0.0.2 myself e2e"),
        ("{..addresses[1]}", "b"),
        ('{.users[?(@.name=="e2e")].user.password}', "secret"),
        ("{.users[?(@.name!='e2e')].name}", "myself"),
        ("{.users[?(@.user.password)].name}", "e2e"),
        ("{.items[?(@.status.slots>=2)].metadata.name}", "127.0.0.2"),
        ("{.items[?(@.status.slots<2)].metadata.name}", "127.0.0.1"),
        ("{.items[?(@.status.ready==true)].metadata.name}", "127.0.0.1"),
        ("{.items[?(@.status.ready==1)].metadata.name}", ""),
        ("{.items[?(@.metadata.name>1)].metadata.name}", ""),
        ('{.items[?(@.status.addresses[1]=="b")].metadata.name}', "127.0.0.1"),
        ("{.items[0].status.addresses[?(@!='b')]}", "a c"),
        ('{range .items[*]}[{.metadata.name}, {.status.capacity}]{"\\n"}{end}',
         '[127.0.0.1, {"cpu":"4"}]\n[127.0.0.2, {"cpu":"8"}]\n'),
        ("{range .items[*]}{.metadata.name} of {$.kind}; {end}", "127.0.0.1 of List; 127.0.0.2 of List; "),
        ("{range .items[*]}{.metadata.name}:{range .status.addresses[*]} {@}{end}{'\\t'}{end}",
         "127.0.0.1: a b c\t127.0.0.2:\t"),
        ("{range .items[0].status.addresses}{@}{end}", '["a","b","c"]'),
        ("{.nothing}", ""),
    ],
)  # fmt: skip
def test_it_picks(template, text):
    assert Template(template).render(NODES)[0] == text


@pytest.mark.parametrize(
    ("template", "matched"),
    [
        ("{.kind}", True),
        ("{.knd}", False),
        ("x {.knd} {.kind}", True),
        ("{range .items[*]}{.nme}{end}", False),
        ("{range .items[*]}x{end}", True),
        ("{range .itms[*]}x{end}", False),
    ],
)
def test_it_knows_whether_a_path_found_something(template, matched):
    assert Template(template).render(NODES)[1] is matched


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("", "has no path in braces"),
        ("name", "has no path in braces"),
        ("{}", "braces are empty"),
        ("{.kind", "not closed"),
        (".kind}", "not opened"),
        ("{range .items[*]}{.kind}", "no {end}"),
        ("{.kind}{end}", "no {range ...} before"),
        ("{.items[0,1]}", "cannot read '[0,1]'"),
        ("{.items[]}", "cannot read '[]'"),
        ("{.items[0}", "cannot read '[0'"),
        ("{.items.}", "cannot read '.'"),
        ("{.items[0:2:0]}", "at least 1"),
        ("{.items[?(@.name=~'a')]}", "without && and ||"),
        ('{.items[?(@.a=="x" && @.b=="y")]}', "is not a quoted text"),
        ("{.items[?(@.a==b)]}", "is not a quoted text"),
    ],
)
def test_what_is_not_valid_is_refused_by_its_part(template, said):
    with pytest.raises(ValueError, match=r".") as refused:
        Template(template)
    assert said in str(refused.value)


def test_a_terminal_is_safe_from_what_it_prints():
    data = {"name": "a\x1b[2J\x9b", "all": {"said": "\x1b\x9b"}}
    assert Template("{.name}").render(data)[0] == "a\\x1b[2J\\x9b"
    assert Template("{.all}").render(data)[0] == '{"said":"\\u001b\\u009b"}'
