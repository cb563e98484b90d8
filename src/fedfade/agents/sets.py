"""A network over the set of clients, whose weights fit any number of clients and sub-bands.

An agent sees everybody in the order of rank (observation part `order`), the clock, its own fading
and numbers of its own. Every rank is a token: what its client needs, how much work there is up to
it. From what a small network says of each, the agent works out a row: everybody's work laid end to
end over the sub-bands, where it ends (attention over ranks: who comes last?) and by how much turns
are stretched. As this follows from what all know, all arrive at the same row. Sub-bands are tokens
as well, and one network scores each: where in the row it is at this time, beside where the own turn
begins and ends, and how it fades.

That work is laid in a row is built in, and that it tends to end where the round is full. Who comes
last, how long turns are at most, and who sends when and where is learned.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.agents.networks import AgentNetworks, Generators, StackedLinear, Tensors
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused

REACH = 2.0  # rounds: farther away than this looks the same
NEAR = 20.0  # and with this factor what is near, down to a slot of hundreds
CLIENT_TOKEN, BAND_TOKEN, PLACE = 6, 12, 7  # numbers in a token; in where an agent stands
SHARP, OVER = 8.0, 3.0  # of the odds of a rank to be the last: what is learned; a row too long
STRETCH = -1.0  # training begins with turns at most 1 + softplus of this as long as expected


class SetNetworks(AgentNetworks):
    """One network for all agents, in scenarios of any size: `resize` says of which.

    An observation is the parts `order`, `slots_left` and `fading`, then numbers of the agent's own,
    as many in every size.

    >>> networks = SetNetworks(10, 37, [32, 16], 5, [torch.Generator().manual_seed(0)])
    >>> networks(torch.zeros(10, 512, 37)).shape
    torch.Size([10, 512, 5])
    >>> networks.resize(4, 17, 3)
    >>> networks(torch.zeros(4, 512, 17)).shape
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
        wide = max(8, hidden[0] // 4)
        own = self.columns()[-1] + PLACE + 2 * wide

        def layers(*sizes: int) -> nn.ModuleList:
            return nn.ModuleList(StackedLinear(*size, generators) for size in pairwise(sizes))

        self.listen = layers(CLIENT_TOKEN, wide, wide)
        self.judge = layers(3 * wide, wide, 2)
        self.own_side = StackedLinear(own, hidden[0], generators)
        self.band_side = StackedLinear(BAND_TOKEN, hidden[0], generators)
        self.score = layers(*hidden, 1)
        self.silence = layers(own, hidden[-1], 1)

    def resize(self, agents: int, width: int, actions: int) -> None:
        """From now on so many clients, numbers in an observation, and actions."""
        self.agents, self.width, self.sizes = agents, width, [width, actions]

    def columns(self) -> list[int]:
        """Own rank, everybody's need, work ahead, work up to each, clock, fading, the rest: how
        many numbers of an observation each is."""
        clients, bands = self.agents, self.sizes[-1] - 1
        known = [clients, clients, 1, clients, 1, bands]
        return [*known, self.width - sum(known)]

    def layers(self, observation: Tensor, room: Tensors | None = None) -> Tensors:
        """What was observed, and the values."""
        seen = observation.reshape(self.runs, -1, observation.shape[-1])
        values = self._values(seen[..., : self.width])
        return [observation, values.view(*observation.shape[:-1], -1)]

    def _values(self, seen: Tensor) -> Tensor:
        """[run, row, width] to [run, row, action]: any sub-band's value is that of silence and
        what sending there adds."""
        parts = torch.split(seen, self.columns(), dim=-1)
        bands = self.sizes[-1] - 1
        others = client_tokens(parts[1], parts[3], bands)  # [run, row, rank, CLIENT_TOKEN]
        heard = _through(self.listen, others.flatten(1, 2)).relu().view(*others.shape[:3], -1)
        pooled = torch.cat([heard.sum(-2) / bands, heard.amax(-2)], dim=-1)
        everybody = pooled[:, :, None].expand(*heard.shape[:3], -1)
        said = _through(self.judge, torch.cat([heard, everybody], dim=-1).flatten(1, 2))
        place, band = band_tokens(parts, said.view(*heard.shape[:3], 2))
        own = torch.cat([parts[-1], place, pooled], dim=-1)
        there = self.band_side(band.flatten(1, 2)).view(*band.shape[:3], -1)
        met = (self.own_side(own)[:, :, None] + there).relu()
        more = _through(self.score, met.flatten(1, 2)).view(band.shape[:3])
        silent = _through(self.silence, own)
        return torch.cat([silent + more, silent], dim=-1)

    def make_room(self, batch: int) -> Tensors:
        """Autograd keeps what it needs."""
        return [self.band_side.weight.new_empty(0)]

    def descend(self, tape: Tensors, g: Tensor, room: Tensors, side: SideStream) -> None:
        """Write the gradient of every parameter from that of all values."""
        with torch.enable_grad():
            self(tape[0]).backward(g)


class SetCritic(nn.Module):
    """What a state is worth in scenarios of any size, that of `agents`: one small network reads
    every client's gain, progress and rank, and the sum of what it says goes on with the clock."""

    def __init__(self, agents: SetNetworks, hidden: Sequence[int], generators: Generators) -> None:
        super().__init__()
        self._size = [agents]  # in a list it is no part of the critic
        self.listen = StackedLinear(3, hidden[0], generators)
        sizes = pairwise([hidden[0] + 3, *hidden[1:], 1])
        self.layers = nn.ModuleList(StackedLinear(*size, generators) for size in sizes)

    def forward(self, state: Tensor) -> Tensor:
        """State [run, batch, width] to [run, batch]."""
        clients, bands = self._size[0].agents, self._size[0].sizes[-1] - 1
        known = [clients, clients * bands, clients, 1]
        parts = torch.split(state, [*known, state.shape[-1] - sum(known)], dim=-1)
        gain, _, left, clock, _ = parts
        rank = (torch.arange(clients, device=state.device) / bands).expand_as(gain)
        token = torch.stack([gain, left, rank], dim=-1)
        heard = self.listen(token.flatten(1, 2)).relu().view(*token.shape[:3], -1)
        size = [torch.full_like(clock, number) for number in (clients / bands, bands / 4.0)]
        x = torch.cat([heard.sum(-2) / bands, clock, *size], dim=-1)
        return _through(self.layers, x)[..., 0]


def _through(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Layers with ReLU between them."""
    for layer in layers[:-1]:
        x = layer(x).relu()
    out: Tensor = layers[-1](x)
    return out


@fused
def client_tokens(need: Tensor, work: Tensor, bands: int) -> Tensor:
    """Everybody's expected rounds and the work up to each rank [run, row, rank]: tokens [run, row,
    rank, CLIENT_TOKEN], which say what is served if that rank is the last."""
    served = torch.arange(1.0, need.shape[-1] + 1.0, device=need.device) / bands
    following = F.pad(need[..., 1:], (0, 1), value=REACH)
    size = torch.full_like(need, 1.0 / bands)
    full = (NEAR * (work - 1.0)).clamp(-REACH, REACH)
    return torch.stack([need, work, full, following, served.expand_as(need), size], dim=-1)


@fused
def band_tokens(parts: Sequence[Tensor], said: Tensor) -> tuple[Tensor, Tensor]:
    """Where an agent stands [run, row, PLACE] and tokens of the sub-bands [run, row, band,
    BAND_TOKEN], by what was said of every rank [run, row, rank, 2]: how likely it is the last one
    served, and how long turns are then. The slots of one sub-band are 1."""
    me, need, before, work, left, fading, _ = parts
    clients, bands = need.shape[-1], fading.shape[-1]
    over = (work - 1.0).clamp(min=0.0)
    full = NEAR * ((1.0 - work).clamp(min=0.0) + OVER * over)  # 0 where the row fills the round
    last = (SHARP * said[..., 0] - full).softmax(-1)
    served = (last.flip(-1).cumsum(-1).flip(-1) * me).sum(-1, keepdim=True)
    most = 1.0 + F.softplus(said[..., 1] + STRETCH)
    stretch = (last * torch.minimum(1.0 / work.clamp(1e-3, 1.0), most)).sum(-1, keepdim=True)
    mine, total = ((own * x).sum(-1, keepdim=True) for own, x in ((me, need), (last, work)))
    start, row = stretch * bands * before, stretch * bands * total
    end = start + (stretch * mine).clamp(max=1.0)
    band = torch.arange(float(bands), device=need.device)
    here = band + (1.0 - left)  # where in the row each sub-band is now
    busy, below = ((here < x).sum(-1, keepdim=True).float() for x in (row, start))
    # A sub-band that nobody's turn is on is somebody's to choose: counted from the end of the row.
    spare = 2.0 * busy - 1.0 - below - band
    edges = [here - start, end - here, row - here]
    seen = [*edges, *(NEAR * edge for edge in edges), band - busy, band - below, spare]
    seen = [number.clamp(-REACH, REACH) for number in seen]
    rank = me @ torch.arange(float(clients), device=me.device)[:, None]
    alike = (rank.remainder(bands) == band).float()  # ranks dealt to sub-bands in turn
    token = [*seen, fading, alike, (band / bands).expand_as(fading)]
    until = (end + left).remainder(1.0)  # of the own turn
    place = [mine, left, served, until, stretch, before, torch.full_like(left, clients / bands)]
    return torch.cat(place, dim=-1), torch.stack(token, dim=-1)


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
