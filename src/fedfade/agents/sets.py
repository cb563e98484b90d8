"""A network over the set of clients, whose weights fit any number of clients and sub-bands.

An agent sees everybody in the order of rank (observation part `order`). Every other client is a
token: what it needs, where its work lies in the row of everybody's work, how far away its rank is.
One small network reads each token; what it says is pooled over the ranks ahead and the ranks
behind, and joins the agent's own numbers. Sub-bands are tokens as well, and one network scores
each: where the own work would begin and end there, were everybody's laid end to end over the
sub-bands. That tells sub-bands apart, which are otherwise all alike; whether to send there, and
when, is learned.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedfade.agents.networks import AgentNetworks, Generators, StackedLinear, Tensors
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused

REACH = 2.0  # rounds: work farther away than this looks the same
CLIENT_TOKEN, BAND_TOKEN, PLACE = 5, 4, 7  # numbers in a token; in where an agent stands


class SetNetworks(AgentNetworks):
    """One network for all agents, in scenarios of any size: `resize` says of which.

    An observation is the part `order` and numbers of the agent's own, as many in every size.

    >>> networks = SetNetworks(10, 36, [32, 16], 5, [torch.Generator().manual_seed(0)])
    >>> networks(torch.zeros(10, 512, 36)).shape
    torch.Size([10, 512, 5])
    >>> networks.resize(4, 18, 3)
    >>> networks(torch.zeros(4, 512, 18)).shape
    torch.Size([4, 512, 3])
    """

    def __init__(
        self,
        agents: int,
        width: int,
        hidden: Sequence[int],
        actions: int,
        generators: Generators,
    ) -> None:
        nn.Module.__init__(self)
        self.runs, self.share, self.client_id, self.dueling = len(generators), True, False, False
        self.prefer = self.prefer_bias = None
        self.resize(agents, width, actions)
        own, wide = width - (3 * agents + 1) + PLACE, max(8, hidden[0] // 4)

        def layers(*sizes: int) -> nn.ModuleList:
            return nn.ModuleList(StackedLinear(*size, generators) for size in pairwise(sizes))

        self.listen = layers(CLIENT_TOKEN, wide, wide)
        self.body = layers(own + 4 * wide, *hidden)
        self.silence = StackedLinear(hidden[-1], 1, generators)
        self.own_side = StackedLinear(hidden[-1] + own, hidden[-1], generators)
        self.band_side = StackedLinear(BAND_TOKEN, hidden[-1], generators)
        self.score = StackedLinear(hidden[-1], 1, generators)

    def resize(self, agents: int, width: int, actions: int) -> None:
        """From now on so many clients, numbers in an observation, and actions."""
        self.agents, self.width, self.sizes = agents, width, [width, actions]

    def layers(self, observation: Tensor, room: Tensors | None = None) -> Tensors:
        """What was observed, and the values."""
        seen = observation.reshape(self.runs, -1, observation.shape[-1])
        values = self._values(seen[..., : self.width])
        return [observation, values.view(*observation.shape[:-1], -1)]

    def _values(self, seen: Tensor) -> Tensor:
        """[run, row, width] to [run, row, action]: any sub-band's value is that of silence and
        what sending there adds."""
        clients, bands = self.agents, self.sizes[-1] - 1
        own, others, side, band = tokens(seen, clients, bands)
        heard = others.flatten(1, 2)
        for layer in self.listen:
            heard = layer(heard).relu()
        x = torch.cat([own, pool(heard.view(*others.shape[:3], -1), side, bands)], dim=-1)
        for layer in self.body:
            x = layer(x).relu()
        mine = self.own_side(torch.cat([x, own], dim=-1))[:, :, None]
        meet = mine + self.band_side(band.flatten(1, 2)).view(*band.shape[:3], -1)
        more = self.score(meet.relu().flatten(1, 2)).view(band.shape[:3])
        silent = self.silence(x)
        return torch.cat([silent + more, silent], dim=-1)

    def make_room(self, batch: int) -> Tensors:
        """Autograd keeps what it needs."""
        return [self.score.weight.new_empty(0)]

    def descend(self, tape: Tensors, g: Tensor, room: Tensors, side: SideStream) -> None:
        """Write the gradient of every parameter from that of all values."""
        with torch.enable_grad():
            self(tape[0]).backward(g)


@fused
def tokens(seen: Tensor, clients: int, bands: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of observations [run, row, width]: own numbers [run, row, number], tokens of all clients
    [run, row, rank, CLIENT_TOKEN], 1 where a rank is ahead of the own and where it is behind [2,
    run, row, rank], tokens of the sub-bands [run, row, band, BAND_TOKEN]."""
    sizes = [clients, clients, 1, clients, seen.shape[-1] - 3 * clients - 1]
    me, need, before, work, rest = torch.split(seen, sizes, dim=-1)
    passed = me.cumsum(-1)
    side = torch.stack([1.0 - passed, passed - me])
    rank, mine = side[0].sum(-1, keepdim=True), (me * need).sum(-1, keepdim=True)
    start = bands * before  # of the own work, the slots of one sub-band being 1
    turn = torch.floor(start)
    place = torch.arange(clients, device=seen.device)
    others = [need, work, need - mine, (bands * work - start).clamp(-REACH, REACH)]
    others += [(place - rank) / bands]
    band = torch.arange(bands, device=seen.device)
    begin, end = (start - band).clamp(-REACH, REACH), (start + mine - band).clamp(-REACH, REACH)
    alike = (rank.remainder(bands) == band).float()
    logical = (band / bands).expand_as(begin)
    of_size = torch.full_like(rank, clients / bands)
    own = [mine, before, start - turn, start + mine - turn, rank / bands, of_size, work[..., -1:]]
    return (
        torch.cat([rest, *own], dim=-1),
        torch.stack(others, dim=-1),
        side,
        torch.stack([begin, end, alike, logical], dim=-1),
    )


@fused
def pool(heard: Tensor, side: Tensor, bands: int) -> Tensor:
    """Sum by sub-bands and maximum over either side of [run, row, rank, number], none of which is
    negative: [run, row, 4 numbers]."""
    found = []
    for who in side:
        there = heard * who[..., None]
        found += [there.sum(-2) / bands, there.amax(-2)]
    return torch.cat(found, dim=-1)


def make_agents(
    config: QmixConfig,
    agents: int,
    width: int,
    actions: int,
    generators: Generators,
    preference: tuple[Tensor, Tensor] | None = None,
) -> AgentNetworks:
    """The agent networks a config describes."""
    if config.network == "set":
        return SetNetworks(agents, width, config.hidden, actions, generators)
    options = (config.share_parameters, config.dueling, preference, config.client_id)
    return AgentNetworks(agents, width, config.hidden, actions, generators, *options)
