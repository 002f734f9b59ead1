"""Bugs in TLS: who would be let in, or what would be told to whom."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ENDPOINTS = "tests/unit/cluster/test_endpoints.py"
_GRPC = "tests/unit/security/test_grpc_tls.py"
_HTTP = "tests/unit/security/test_http_tls.py"
_FILES = "tests/unit/security/test_pem_files.py"
_EXPOSURE = "tests/unit/security/test_exposure.py"
_AUTHORITY = "tests/unit/security/test_authority.py"
_REAL = "tests/fault/test_tls.py"
_TOKENS = "tests/unit/security/test_tokens.py"
_TOKEN_KEYS = "tests/unit/security/test_token_keys.py"
_TOKEN_FILE = "tests/unit/security/test_token_file.py"

SECURITY_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a client with a CA falls back to plaintext",
        "bookie/cluster/endpoints.py",
        "    if plain and (settings.allow_plaintext or not settings.uses_tls):\n",
        "    if plain:\n",
        (f"{_ENDPOINTS}::test_refused",),
        "Whoever writes a registration could read everything that this client sends.",
    ),
    Mutant(
        "a client that may use plaintext prefers it",
        "bookie/cluster/endpoints.py",
        "    if settings.uses_tls and by_tls:\n",
        "    if settings.uses_tls and by_tls and not plain:\n",
        (f"{_ENDPOINTS}::test_taken",),
        "After a change to TLS nothing would be encrypted.",
    ),
    Mutant(
        "a channel forgets its credentials",
        "bookie/wire/grpc/transport.py",
        "    if credentials is None:\n        return aio.insecure_channel",
        "    if credentials is None or options:\n        return aio.insecure_channel",
        (f"{_GRPC}::test_both_ends_know_each_other",),
        "Downgrade in the last place that opens a connection.",
    ),
    Mutant(
        "a bookie does not ask clients for certificates",
        "bookie/wire/grpc/credentials.py",
        "            self._files.settings.require_client_certificate,\n",
        "            False,\n",
        (f"{_GRPC}::test_strangers", f"{_GRPC}::test_who_calls_is_known"),
        "Everybody may write.",
    ),
    Mutant(
        "a server keeps its first certificate",
        "bookie/wire/grpc/credentials.py",
        "        if pems is self._made_of:\n            return None\n",
        "        if pems:\n            return None\n",
        (f"{_GRPC}::test_a_renewed_certificate_ends_no_stream",),
        "A renewed certificate would need a restart, and a removed CA stays trusted.",
    ),
    Mutant(
        "a client keeps the credentials of its first connection",
        "bookie/ledger/connection/pool.py",
        "        return is_changed and not channel.is_connected\n",
        "        return False\n",
        (f"{_REAL}::test_a_new_ca_in_the_middle_of_a_stream",),
        "After a renewal it is refused by each bookie that restarts.",
    ),
    Mutant(
        "changed files end connections that stand",
        "bookie/ledger/connection/pool.py",
        "        return is_changed and not channel.is_connected\n",
        "        return is_changed\n",
        (f"{_REAL}::test_a_new_ca_in_the_middle_of_a_stream",),
        "A renewal would interrupt every stream.",
    ),
    Mutant(
        "an unchanged certificate is given to gRPC anew",
        "bookie/wire/grpc/credentials.py",
        "            return None\n        configuration",
        "            pass\n        configuration",
        (f"{_GRPC}::test_an_unchanged_configuration_is_not_replaced",),
        "gRPC frees the former one under handshakes that use it: anybody could crash a bookie.",
    ),
    Mutant(
        "a file that cannot be used is logged at each look",
        "bookie/security/pem_files.py",
        "            if str(error) != self._said:\n",
        "            if error:\n",
        (f"{_FILES}::test_a_file_that_vanishes_changes_nothing",),
        "The log fills up.",
    ),
    Mutant(
        "host names are not verified over HTTP",
        "bookie/security/contexts.py",
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n",
        "    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n"
        "    context.check_hostname = False\n",
        (f"{_AUTHORITY}::test_a_certificate_for_another_host",),
        "Each bookie could pose as any other.",
    ),
    Mutant(
        "HTTP accepts TLS 1.2",
        "bookie/security/contexts.py",
        "    context.minimum_version = ssl.TLSVersion.TLSv1_3\n    context.num_tickets = 0\n",
        "    context.num_tickets = 0\n",
        (f"{_HTTP}::test_nothing_older_than_tls_1_3",),
        "The promise is 1.3.",
    ),
    Mutant(
        "HTTP keeps its first context",
        "bookie/daemon/http.py",
        "        None if files is None else lambda: files.context,\n",
        "        None if files is None else (lambda first: lambda: first)(files.context),\n",
        (f"{_HTTP}::test_renewed_files_are_for_new_connections",),
        "A removed CA stays trusted until a restart.",
    ),
    Mutant(
        "metrics need no certificate",
        "bookie/daemon/http.py",
        "        if request.path in self.open_paths and request.method in",
        "        if request.method in",
        (f"{_HTTP}::test_who_may_ask_what",),
        "Names of ledgers and figures of load are for those who are known.",
    ),
    Mutant(
        "a wildcard address counts as loopback",
        "bookie/security/exposure.py",
        "    return address.is_loopback\n",
        "    return not address.is_global\n",
        (f"{_EXPOSURE}::test_not_loopback",),
        "A bookie would be open to its network, unasked.",
    ),
    Mutant(
        "a client's certificate is good for a bookie",
        "bookie/security/authority.py",
        "    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]\n",
        "    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]\n",
        (f"{_AUTHORITY}::test_a_client_cannot_be_a_bookie",),
        "Whoever may read could pose as a bookie, if his name is that of a host.",
    ),
    Mutant(
        "a token chooses its algorithm",
        "bookie/security/tokens.py",
        "key.material, [key.algorithm])",
        'key.material, [header["alg"]])',
        (f"{_TOKENS}::test_a_secret_signs_for_its_key_alone",),
        "A library that follows the token takes a public key as a secret.",
    ),
    Mutant(
        "a token for another cluster is good",
        "bookie/security/tokens.py",
        "        if self._audience not in named:\n",
        "        if not named:\n",
        (f"{_TOKENS}::test_claims_that_are_refused",),
        "Who may use one cluster may use all that trust the issuer.",
    ),
    Mutant(
        "a remembered token never expires",
        "bookie/security/tokens.py",
        "        try:\n            _check_time(found, now_seconds)\n        except TokenRefused:\n",
        "        try:\n            pass\n        except TokenRefused:\n",
        (f"{_TOKENS}::test_a_verified_token_is_remembered",),
        "A stolen token is good as long as its thief uses it.",
    ),
    Mutant(
        "remembered tokens outlive their key",
        "bookie/security/tokens.py",
        "            self._verified.clear()\n",
        "            pass\n",
        (f"{_TOKENS}::test_rotation", f"{_TOKENS}::test_another_key_with_the_same_id"),
        "To forget a key is the only way to revoke its tokens.",
    ),
    Mutant(
        "a bookie takes any key that a token does not name",
        "bookie/security/tokens.py",
        "        if len(by_id) == 1:\n",
        "        if by_id:\n",
        (f"{_TOKENS}::test_a_token_without_a_key_id",),
        "The first of several keys would be a guess.",
    ),
    Mutant(
        "a bookie takes a set with private keys",
        "bookie/security/tokens.py",
        '        if "d" in jwk:\n',
        "        if False:\n",
        (f"{_TOKENS}::test_keys_that_are_refused",),
        "Each bookie could make tokens, and nobody would notice.",
    ),
    Mutant(
        "everybody reads the secrets of a key set",
        "bookie/security/token_keys.py",
        "content, 0o600 if is_secret else 0o644)",
        "content, 0o644)",
        (f"{_TOKEN_KEYS}::test_keys_and_tokens",),
        "Each user of the machine could make tokens.",
    ),
    Mutant(
        "a command sends its token in plaintext",
        "bookie/cli/node.py",
        "    else:\n        token = {}\n",
        "    else:\n        token = _authorization(settings)\n",
        (f"{_TOKEN_FILE}::test_commands_send_the_token_by_tls_alone",),
        "Whoever listens could use it.",
    ),
    Mutant(
        "a stream keeps the token of its first attempt",
        "bookie/wire/grpc/client/channel.py",
        "            lambda: call(metadata=self._metadata_for(incarnation)),\n",
        "            lambda metadata=self._metadata_for(incarnation): call(metadata=metadata),\n",
        (f"{_TOKEN_FILE}::test_a_stream_that_is_opened_again_takes_the_token_of_its_moment",),
        "A writer would be refused as soon as its first token has expired.",
    ),
)
