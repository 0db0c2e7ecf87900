from plugin.devices.claims import DeviceIds


def test_an_id_that_two_resources_have_is_told_to_the_second_until_the_first_lets_go() -> None:
    identities = DeviceIds()
    assert identities.advertise("a.b/x", ["1", "2"]) == {}
    assert identities.advertise("a.b/y", ["2", "3"]) == {"2": "a.b/x"}
    assert identities.advertise("a.b/x", ["1"]) == {}
    assert identities.advertise("a.b/y", ["2", "3"]) == {}
    identities.release("a.b/y")
    identities.release("a.b/none")
    assert identities.advertise("a.b/x", ["2"]) == {}
