"""The identity of a process, and the peers that it trusts: certificates, keys and tokens.

| module | content |
|---|---|
| `pem_files` | the files of ``[security]``, checked, and loaded again when they change |
| `contexts` | SSL contexts for HTTP servers and HTTP clients |
| `certificates` | the fields of a certificate: subject, names, expiry |
| `usable` | the kinds of keys that gRPC can use |
| `suitability` | the reasons for which peers would refuse a bookie's certificate |
| `identity` | the names in a peer's certificate |
| `exposure` | the listeners that anyone on the network can use |
| `authority` | a private CA: ``bookie security`` |
| `tokens` | the verification of a caller's token, and its keys |
| `token_file` | the token that a client shows |
| `token_keys` | private keys and tokens: ``bookie security`` |
| `gatekeeper` | the principal and the permissions of each caller |
| `grants`, `rights` | the roles of principals, and the rights of roles |
| `permissions`, `rates` | the decision about each request, by rights and by rates |
| `audit` | the log of refused calls and destructive calls |
| `followed_file` | one file, read again when it changes |
| `private_files` | atomic writes of files with keys and tokens, readable only for their owner |

`bookie.wire.grpc.credentials` makes gRPC's credentials of the same files. Only functions import
`cryptography` and `jwt`, so a process without TLS does not load these packages.
"""

from bookie.security.pem_files import PemFiles, Pems

__all__ = ["PemFiles", "Pems"]
