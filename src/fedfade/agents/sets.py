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

Agents that hear who has finished (`FeedbackNetworks`) see which sub-bands are free by that, and
who of the row waits for one. Agents that see everybody's fading (`MatchingNetworks`) have no row:
they work out what everybody would be worth on every sub-band, and at which prices each sub-band is
wanted by one client.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedfade.agents.networks import (
    AgentNetworks,
    Generators,
    StackedLinear,
    Tensors,
    stacked_layers,
    through_layers,
)
from fedfade.config import QmixConfig
from fedfade.graphs import SideStream, fused

REACH = 2.0  # rounds: farther away than this looks the same
NEAR = 20.0  # and with this factor what is near, down to a slot of hundreds
CLIENT_TOKEN, BAND_TOKEN, PLACE = 6, 12, 7  # numbers in a token; in where an agent stands
FREE_TOKEN, OPEN_TOKEN = 5, 5  # more of a sub-band, and of a client, for those who hear finishes
SHARP, OVER = 8.0, 3.0  # of the odds of a rank to be the last: what is learned; a row too long
STRETCH = -1.0  # training begins with turns at most 1 + softplus of this as long as expected
WORTH = 200.0  # the most that a client's need counts in what a sub-band is worth to it
GAIN = 1.2  # what a slot is worth where sub-bands are matched, by what is expected of one alone
COLD = 5.0  # trained agents are so much surer of their worths than they are taught to be
COOLING, BIDS = tuple(0.6**n for n in range(12)), 3  # temperatures, and moves of prices at each


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

    band_token = BAND_TOKEN

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
        self.build(hidden, generators)

    def build(self, hidden: Sequence[int], generators: Generators) -> None:
        """Make the layers."""
        wide = max(8, hidden[0] // 4)
        own = self.columns()[-1] + PLACE + 2 * wide
        self.listen = stacked_layers(generators, CLIENT_TOKEN, wide, wide)
        self.judge = stacked_layers(generators, 3 * wide, wide, 2)
        self.own_side = StackedLinear(own, hidden[0], generators)
        self.band_side = StackedLinear(self.band_token, hidden[0], generators)
        self.score = stacked_layers(generators, *hidden, 1)
        self.silence = stacked_layers(generators, own, hidden[-1], 1)

    def resize(self, agents: int, width: int, actions: int) -> None:
        """From now on so many clients, numbers in an observation, and actions."""
        self.agents, self.width, self.sizes = agents, width, [width, actions]

    def columns(self) -> list[int]:
        """Own rank, everybody's need, work ahead, work up to each, clock, fading, what is told
        besides, the rest: how many numbers of an observation each is."""
        clients, bands = self.agents, self.sizes[-1] - 1
        known = [clients, clients, 1, clients, 1, bands, *self.told(clients, bands)]
        return [*known, self.width - sum(known)]

    def told(self, clients: int, bands: int) -> list[int]:
        """What the base station tells in every slot."""
        return []

    def layers(
        self, observation: Tensor, room: Tensors | None = None, keep: bool = True
    ) -> Tensors:
        """What was observed, and the values."""
        seen = observation.reshape(self.runs, -1, observation.shape[-1])
        values = self._values(seen[..., : self.width])
        return [observation, values.view(*observation.shape[:-1], -1)]

    def _values(self, seen: Tensor) -> Tensor:
        """[run, row, width] to [run, row, action]: any sub-band's value is that of silence and
        what sending there adds."""
        parts = torch.split(seen, self.columns(), dim=-1)
        bands = self.sizes[-1] - 1
        said, pooled = self._judge(client_tokens(parts[1], parts[3], bands), bands)
        place, band = self.tokens(parts, said)
        own = torch.cat([parts[-1], place, pooled], dim=-1)
        there = self.band_side(band.flatten(1, 2)).view(*band.shape[:3], -1)
        met = (self.own_side(own)[:, :, None] + there).relu()
        more = through_layers(self.score, met.flatten(1, 2)).view(band.shape[:3])
        silent = through_layers(self.silence, own)
        return torch.cat([silent + more, silent], dim=-1)

    def _judge(self, others: Tensor, bands: int) -> tuple[Tensor, Tensor]:
        """What is said of every rank, by its token [run, row, rank, number] and by what is said of
        all: [run, row, rank, number] and [run, row, number]."""
        heard = through_layers(self.listen, others.flatten(1, 2)).relu().view(*others.shape[:3], -1)
        pooled = torch.cat([heard.sum(-2) / bands, heard.amax(-2)], dim=-1)
        everybody = pooled[:, :, None].expand(*heard.shape[:3], -1)
        said = through_layers(self.judge, torch.cat([heard, everybody], dim=-1).flatten(1, 2))
        return said.view(*heard.shape[:3], -1), pooled

    def tokens(self, parts: Sequence[Tensor], said: Tensor) -> tuple[Tensor, Tensor]:
        """Where an agent stands, and what it sees of every sub-band."""
        return band_tokens(parts, *lay_row(parts[3], said))

    def make_room(self, batch: int) -> Tensors:
        """Autograd keeps what it needs."""
        return [self.band_side.weight.new_empty(0)]

    def descend(self, tape: Tensors, g: Tensor, room: Tensors, sides: Sequence[SideStream]) -> None:
        """Write the gradient of every parameter from that of all values."""
        with torch.enable_grad():
            self(tape[0]).backward(g)


class FeedbackNetworks(SetNetworks):
    """The same for agents that hear who has finished: after `fading` comes `finished_order`."""

    band_token = BAND_TOKEN + FREE_TOKEN

    def told(self, clients: int, bands: int) -> list[int]:
        return [clients]

    def tokens(self, parts: Sequence[Tensor], said: Tensor) -> tuple[Tensor, Tensor]:
        row = lay_row(parts[3], said)
        place, band = band_tokens(parts, *row)
        return place, torch.cat([band, free_tokens(parts, *row)], dim=-1)


class MatchingNetworks(SetNetworks):
    """For agents that see everybody's fading: after `fading` come `finished_order` and
    `order_fading`. Of its own an agent goes by its rank alone, so that all agree who sends where.
    """

    def told(self, clients: int, bands: int) -> list[int]:
        return [clients, clients * bands]

    def build(self, hidden: Sequence[int], generators: Generators) -> None:
        wide = max(8, hidden[0] // 4)
        self.listen = stacked_layers(generators, CLIENT_TOKEN + OPEN_TOKEN, wide, wide)
        self.judge = stacked_layers(generators, 3 * wide, wide, 1)
        self.band_side = StackedLinear(3, wide, generators)
        self.score = stacked_layers(generators, wide, 1)

    def _values(self, seen: Tensor) -> Tensor:
        """[run, row, width] to [run, row, action]: what a sub-band is worth to the agent beyond its
        price; silence is worth 0."""
        parts = torch.split(seen, self.columns(), dim=-1)
        me, need, _, work, left, _, done = parts[:7]
        bands = self.sizes[-1] - 1
        fading = parts[7].view(*need.shape, bands)  # [run, row, rank, band]
        others = open_tokens(need, work, left, done, bands)
        said, _ = self._judge(others, bands)
        # Bounded, as prices go along with what all find worth more. Too many, and all are late.
        weight = torch.sigmoid(said - (-others[..., -1:]).relu())
        pair = torch.stack([fading, fading.exp(), need[..., None].expand_as(fading)], dim=-1)
        met = self.band_side(pair.flatten(1, 3)).relu()
        better = 1.0 + fading + through_layers(self.score, met).view_as(fading).tanh()
        worth = WORTH * weight * F.softplus(better)
        worth = torch.where(done[..., None] > 0, -1.0, worth if self.training else COLD * worth)
        beyond = worth - clearing_prices(worth.detach())
        mine = (me[..., None] * beyond).sum(-2)
        return F.pad(mine, (0, 1))


class SetCritic(nn.Module):
    """What a state is worth in scenarios of any size, that of `agents`: one small network reads
    every client's gain, progress and rank, and the sum of what it says goes on with the clock."""

    def __init__(self, agents: SetNetworks, hidden: Sequence[int], generators: Generators) -> None:
        super().__init__()
        self._size = [agents]  # in a list, so that PyTorch does not register it
        self.listen = StackedLinear(3, hidden[0], generators)
        self.layers = stacked_layers(generators, hidden[0] + 3, *hidden[1:], 1)

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
        return through_layers(self.layers, x)[..., 0]


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
def open_tokens(need: Tensor, work: Tensor, left: Tensor, done: Tensor, bands: int) -> Tensor:
    """`client_tokens` of those who hear finishes: also the clock, who has finished, how many have
    not up to each rank, their work, and how far a full round is from it; below 0 there are too
    many. Those who fitted from the start have sent in step with the clock, the others nothing."""
    sends = 1.0 - done
    rank = torch.arange(1.0, need.shape[-1] + 1.0, device=need.device)
    fitted = (work.maximum(need) <= GAIN) | (rank <= bands)
    open_, needs = sends.cumsum(-1) / bands, torch.where(fitted, need, need / left)
    work_left = ((needs * sends).cumsum(-1) / bands).clamp(max=REACH)
    room = NEAR * (GAIN - work_left.maximum(needs))
    room = torch.where(fitted & (open_ <= 1.0), room.relu(), room).clamp(-NEAR, REACH)
    more = torch.stack([left.expand_as(done), done, open_, work_left, room], dim=-1)
    return torch.cat([client_tokens(need, work, bands), more], dim=-1)


@fused
def lay_row(work: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
    """How likely each rank is the last one served [run, row, rank], and by how much turns are
    stretched [run, row, 1]; both were said of every rank [run, row, rank, 2]."""
    over = (work - 1.0).clamp(min=0.0)
    full = NEAR * ((1.0 - work).clamp(min=0.0) + OVER * over)  # 0 where the row fills the round
    last = (SHARP * said[..., 0] - full).softmax(-1)
    most = 1.0 + F.softplus(said[..., 1] + STRETCH)
    stretch = (last * torch.minimum(1.0 / work.clamp(1e-3, 1.0), most)).sum(-1, keepdim=True)
    return last, stretch


@fused
def band_tokens(parts: Sequence[Tensor], last: Tensor, stretch: Tensor) -> tuple[Tensor, Tensor]:
    """Where an agent stands [run, row, PLACE] and tokens of the sub-bands [run, row, band,
    BAND_TOKEN]. The slots of one sub-band are 1."""
    me, need, before, work, left, fading = parts[:6]
    clients, bands = need.shape[-1], fading.shape[-1]
    served = (last.flip(-1).cumsum(-1).flip(-1) * me).sum(-1, keepdim=True)
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


@fused
def free_tokens(parts: Sequence[Tensor], last: Tensor, stretch: Tensor) -> Tensor:
    """More of every sub-band [run, row, band, FREE_TOKEN] for those who hear who has finished: is
    it mine by the row; is it free; how far it is from mine among the free ones, if I wait for one,
    late or early; and how far if nobody waits for it and those who send share it out."""
    me, need, _, work, left, fading, done = parts[:7]
    bands, clock = fading.shape[-1], 1.0 - left
    served = last.flip(-1).cumsum(-1).flip(-1) > 0.5  # [run, row, rank]
    start = stretch * (bands * work - need)
    end = start + (stretch * need).clamp(max=1.0)
    here = (torch.arange(bands, device=need.device) + clock)[:, :, None]
    on_air = (here >= start[..., None]) & (here < end[..., None])
    open_ = (served & (done == 0.0)).float()
    turn = open_[..., None] * on_air  # [run, row, rank, band]
    free = 1.0 - turn.amax(-2)  # [run, row, band]
    card = free.cumsum(-1) - 1.0  # number of a free sub-band
    waits = open_ - turn.amax(-1)  # [run, row, rank]
    # A turn that is cut goes on at the end of the round. 1e-4 makes up for sums in float32.
    over = (start + 1e-4).floor() + clock >= end
    late, early = waits * over, waits * ~over
    first = late.sum(-1, keepdim=True)
    number = torch.where(over, late.cumsum(-1), first + early.cumsum(-1)) - 1.0
    waiting = waits.sum(-1, keepdim=True)
    behind = open_.flip(-1).cumsum(-1).flip(-1) - 1.0  # all who are open send: how many come after
    hands = open_.sum(-1, keepdim=True).clamp(min=1.0)

    def mine(by_rank: Tensor) -> Tensor:
        return (me * by_rank).sum(-1, keepdim=True)

    asks = [(card - mine(number)).abs() + REACH * (1.0 - mine(who)) for who in (late, early)]
    spare = ((card - waiting).remainder(hands) - mine(behind)).abs()
    spare = torch.where(card >= waiting, spare, REACH)
    far = [torch.where(free > 0.0, x.clamp(max=REACH), REACH) for x in (*asks, spare)]
    own = (me[..., None] * turn).sum(-2)
    return torch.stack([own, free, *far], dim=-1)


@torch.no_grad()
@fused
def clearing_prices(worth: Tensor) -> Tensor:
    """Prices of sub-bands [run, row, 1, band] at which each is wanted by one client, if all draw
    what they want from a softmax of `worth` [run, row, rank, band] less price, silence being worth
    0 (Sinkhorn's iteration, from hot to cold). Who wants what then is a matching of greatest worth.
    """
    price = torch.zeros_like(worth[..., :1, :])
    most = worth.amax((-2, -1), keepdim=True)
    for cooler in COOLING:
        heat = (cooler * most).clamp(min=1.0)
        wish, cheaper = ((worth - price) / heat).clamp(-60.0, 60.0).exp(), torch.ones_like(price)
        free = (price / heat).clamp(max=60.0).exp()  # no sub-band is cheaper than that
        for _ in range(BIDS):
            share = 1.0 / (1.0 + (wish * cheaper).sum(-1, keepdim=True))
            cheaper = free.minimum(1.0 / (wish * share).sum(-2, keepdim=True).clamp(min=1e-30))
        price = price - heat * cheaper.log()
    return price


OVER_SETS = {"set": SetNetworks, "set-feedback": FeedbackNetworks, "set-csi": MatchingNetworks}


def make_agents(
    config: QmixConfig,
    agents: int,
    width: int,
    actions: int,
    generators: Generators,
    preference: tuple[Tensor, Tensor] | None = None,
) -> AgentNetworks:
    """The agent networks a config describes."""
    if config.network != "mlp":
        return OVER_SETS[config.network](agents, width, config.hidden, actions, generators)
    options = (config.share_parameters, config.dueling, preference, config.client_id)
    return AgentNetworks(agents, width, config.hidden, actions, generators, *options)
