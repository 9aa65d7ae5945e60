import pytest

from cli.objects.selectors import parse_selector

LABELS = {"app": "chat", "tier": "gold", "empty": "", "example.com/zone": "a"}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("app=chat", True),
        ("app==chat", True),
        ("app = chat", True),
        ("app=other", False),
        ("app!=chat", False),
        ("app!=other", True),
        ("none!=x", True),
        ("none=x", False),
        ("app", True),
        ("none", False),
        ("!none", True),
        ("! app", False),
        ("app in (chat,other)", True),
        ("app in ( other )", False),
        ("app notin (chat, other)", False),
        ("none notin (x)", True),
        ("empty=", True),
        ("app=", False),
        ("example.com/zone=a", True),
        ("app=chat,tier=gold", True),
        ("app=chat, tier!=gold", False),
        ("app in (a,chat),tier in (gold,silver),!none", True),
        ("app in (a,chat),tier in (silver)", False),
    ],
)
def test_all_demands_must_hold(text, selected):
    assert parse_selector(text).matches(LABELS) is selected


@pytest.mark.parametrize(
    "text", ["", "app=chat,", ",app", "=chat", "app=(a)", "app in chat", "app in (a", "app ~ b", "a b", "!app=chat"]
)
def test_what_is_not_valid_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="is not a valid label selector; write key=value"):
        parse_selector(text)
