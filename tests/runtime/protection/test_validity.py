"""runtime.protection.validity: what another reader finds, and no crash for what is no certificate."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from harness.certificates import Certificates
from runtime.http import Traffic, WebFamilies
from runtime.protection.reload import Protection
from runtime.protection.validity import Validity, earliest, validity

KEY = ec.generate_private_key(ec.SECP256R1())
# RFC 5280: years up to 2049 have two digits, later ones four.
MOMENTS = st.datetimes(datetime(1951, 1, 1), datetime(9998, 12, 31)).map(  # noqa: DTZ001 -- as hypothesis has it
    lambda moment: moment.replace(microsecond=0, tzinfo=UTC)
)
SPANS = st.tuples(MOMENTS, MOMENTS).map(sorted)


def certificate(begins: datetime, ends: datetime, name: str = "localhost") -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .sign(KEY, hashes.SHA256())
    )


@given(SPANS)
def test_its_moments_are_those_that_another_reader_finds(span: tuple[datetime, datetime]) -> None:
    made = certificate(*span)
    assert validity(made.public_bytes(Encoding.DER)) == Validity(*(at.timestamp() for at in span))


@given(st.lists(SPANS, min_size=1, max_size=3), st.text(max_size=20))
def test_of_a_chain_the_one_that_ends_first_counts(
    spans: list[tuple[datetime, datetime]], between: str
) -> None:
    said = f"\n# {between.replace('-', '')}\n".encode()
    pem = said.join(certificate(*span).public_bytes(Encoding.PEM) for span in spans)
    found = earliest(pem)
    assert found is not None
    assert found.ends == min(ends for _, ends in spans).timestamp()
    assert (found.begins, found.ends) in {(b.timestamp(), e.timestamp()) for b, e in spans}


@given(SPANS, st.integers(0, 10_000), st.binary(max_size=3))
def test_what_is_cut_or_damaged_is_no_crash(span: tuple[datetime, datetime], at: int, put: bytes) -> None:
    der = certificate(*span).public_bytes(Encoding.DER)
    at %= len(der)
    for damaged in (der[:at], der[:at] + put + der[at + len(put) :]):
        try:
            found = validity(damaged)
        except ValueError:
            continue
        assert isinstance(found, Validity)


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", b"\xff" * 9]
)
def test_what_is_no_certificate_has_none(pem: bytes) -> None:
    assert earliest(pem) is None


async def test_it_is_told_of_the_certificate_in_force_and_of_the_renewed_one(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    protection = Protection(made.configuration(), settle=0.0)
    web = WebFamilies("x", Traffic(), protection)

    def told() -> dict[str, list[float]]:
        return {
            f.name: [sample.value for sample in f.samples] for f in web.collect() if "certificate" in f.name
        }

    names = ("x_web_certificate_not_before_timestamp_seconds", "x_web_certificate_expiry_timestamp_seconds")
    assert told() == {name: [] for name in names}
    try:
        await protection.begin()
        before = web.condition()
        now = datetime.now(UTC).replace(microsecond=0)
        span = (now - timedelta(days=1), now + timedelta(days=2))
        shorter = certificate(*span, "an authority that ends sooner")
        chain = made.path("tls.crt").read_bytes() + shorter.public_bytes(Encoding.PEM)
        made.path("tls.crt").write_bytes(chain)
        await protection.reload()
        assert protection.problem == ""
        assert told() == {name: [at.timestamp()] for name, at in zip(names, span, strict=True)}
        assert web.condition() != before
    finally:
        protection.end()
