"""Services and the addresses of their instances: each service is a group, each instance a member.

An instance stays announced until its process leaves the group or its session ends. So, until the
session of a dead process ends, a lookup still returns its instance. If a connection to an instance
fails, try another instance.
"""

from __future__ import annotations

from bookie.coordination.membership import Group, GroupView, Member
from bookie.coordination.participant import Participant
from bookie.coordination.service_instance import (
    ServiceInstance,
    decode_service_instance,
    encode_service_instance,
)
from bookie.env.checked import checked
from bookie.errors import FormatError
from bookie.metadata.model import check_key
from bookie.telemetry import event_log

_log = event_log(__name__)


class Discovery:
    """The services that are stored below `path`."""

    @checked
    def __init__(self, participant: Participant, path: str = "/services") -> None:
        self._participant = participant
        self._path = check_key(path)

    @checked
    def announce(self, service: str, instance_id: str, instance: ServiceInstance) -> Member:
        """Return a context that announces an instance while the context is open; see `Member`.

        Raises:
            BadRequestError: the port is out of range.
        """
        value = encode_service_instance(instance)
        return Group(self._participant, f"{self._path}/{service}").join(instance_id, value)

    async def services(self) -> list[str]:
        """Return the names of the services that have instances, sorted.

        On ZooKeeper, the result may also contain a service whose last instance died.
        """
        return await self._participant.store.get_children(self._path)

    @checked
    async def lookup(self, service: str) -> dict[str, ServiceInstance]:
        """Read the instances of a service from the store; return the readable instances by id."""
        return _decoded(await Group(self._participant, f"{self._path}/{service}").members())

    @checked
    def view(self, service: str) -> ServiceView:
        """Return a view of a service's instances; a watch updates the view while it is open."""
        return ServiceView(self._participant, f"{self._path}/{service}")


class ServiceView(GroupView):
    """A `GroupView` whose members are instances of a service."""

    @property
    def instances(self) -> dict[str, ServiceInstance]:
        """The readable instances by their ids, as the view knows them now."""
        return _decoded(dict(self.members))


def _decoded(members: dict[str, bytes]) -> dict[str, ServiceInstance]:
    instances = {}
    for name, value in members.items():
        try:
            instances[name] = decode_service_instance(value)
        except FormatError as error:
            # The record is no service instance, or a newer version of bookie wrote it. The other
            # instances stay usable.
            _log.warning("instance_unreadable", instance=name, reason=str(error))
    return instances
