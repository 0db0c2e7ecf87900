from plugin.devices.claims import Identities


def test_an_id_that_two_resources_have_is_told_to_the_second_until_the_first_lets_go() -> None:
    identities = Identities()
    assert identities.claim("a.b/x", ["1", "2"]) == {}
    assert identities.claim("a.b/y", ["2", "3"]) == {"2": "a.b/x"}
    assert identities.claim("a.b/x", ["1"]) == {}
    assert identities.claim("a.b/y", ["2", "3"]) == {}
    identities.release("a.b/y")
    identities.release("a.b/none")
    assert identities.claim("a.b/x", ["2"]) == {}
