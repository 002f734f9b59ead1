"""Who a process is and whom it trusts: certificates and keys from files, for TLS.

| module | what it holds |
|---|---|
| `pem_files` | the files of ``[security]``, checked, and loaded again when they change |
| `contexts` | SSL contexts for HTTP, of both ends |
| `certificates` | what a certificate says: subject, names, expiry |
| `usable` | the kinds of keys that gRPC can use |
| `suitability` | why peers would refuse a bookie's certificate |
| `identity` | who a peer is, by its certificate |
| `exposure` | the listeners that anyone on the network reaches |
| `authority` | a CA of one's own: ``bookie security`` |
| `tokens` | who a caller is by its token, and the keys that verify it |
| `token_file` | the token that a client shows |
| `token_keys` | keys and tokens of one's own: ``bookie security`` |
| `followed_file` | one file, read again when it changes |
| `private_files` | files of keys, written whole and for their owner |

gRPC's credentials are made of the same files by `bookie.wire.grpc.credentials`. `cryptography` and
`jwt` are imported inside of functions alone: a process without TLS does without them.
"""

from bookie.security.pem_files import PemFiles, Pems

__all__ = ["PemFiles", "Pems"]
