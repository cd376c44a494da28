"""O. Vinyals, C. Blundell, T. Lillicrap, K. Kavukcuoglu and D. Wierstra, "Matching Networks for One Shot Learning".

NeurIPS 2016 (MatchingNet), https://arxiv.org/abs/1606.04080

The probability of a class is the sum of a query's attention to its labelled items: a softmax over the support of cosine
similarities. Items are compared by full context embeddings, which depend on the task: one LSTM reads the support in
both directions, and another one reads each query with attention to the support. Training minimises the cross-entropy of
the queries.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mirrorshot.methods.base import FewShotMethod
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS
from mirrorshot.methods.shared import initial_weights_, support_one_hot
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import TaskBatch

_SCALE = 100.0  # factor of the similarities, as in the reference


class MatchingNet(FewShotMethod):
    """Matching network with full context embeddings.

    With features `s` of the support and `f` of a query, and `N` labelled items:

    - `g = s + LSTM_forward(s) + LSTM_backward(s)`, over the items in their order: **the order of the support matters**.
    - `N` times, from `h = f` and `c = 0`: `r = softmax(h g^T) g`; `h, c = LSTM([f, r], (h, c))`; `h = h + f`.
    - `p(y = c) = sum over the items of class c of softmax(100 relu(cos(h, g)))`.

    Probabilities are exact, with sums in the log domain; the reference adds 1e-6 to each in the loss.

    Design note: the linear maps of `g`, in place of `r`, and of `f` are computed once, which reduces a step to a third
    of the work. The LSTMs compute in the dtype of the network, similarities do not. Rejected: packed sequences, which
    need the lengths of the tasks on the host.
    """

    recipes = (MUON_ON_PHOTOGRAPHS,)

    def __init__(self, backbone: Backbone, *, seed: int = 0) -> None:
        super().__init__(backbone)
        D, generator = backbone.out_features, torch.Generator().manual_seed(seed)
        self.forward_cell = _lstm_cell(D, D, generator)
        self.backward_cell = _lstm_cell(D, D, generator)
        self.query_cell = _lstm_cell(2 * D, D, generator)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Logarithm of the attention of the queries to the items of each class."""
        support, query = (z.flatten(2) for z in self.features(tasks))
        is_real = tasks.support_weight > 0
        g = self._support_codes(support, is_real)
        h = self._query_codes(query, g, is_real)
        similarity = F.normalize(h, dim=-1) @ F.normalize(g, dim=-1).mT
        attention = _masked(_SCALE * F.relu(similarity), is_real[:, None, :]).log_softmax(-1)
        is_member = support_one_hot(tasks, g.dtype) > 0
        log_prob = _masked(attention[:, :, None, :], is_member[:, None]).logsumexp(-1)
        return log_prob.masked_fill(~tasks.class_mask[:, None, :], -torch.inf)

    def _support_codes(self, s: Float[Tensor, "T N D"], is_real: Bool[Tensor, "T N"]) -> Float[Tensor, "T N D"]:
        N = s.shape[1]
        ahead = self._read(self.forward_cell, s, is_real, range(N))
        back = self._read(self.backward_cell, s, is_real, reversed(range(N)))
        return s + torch.stack([ahead[n] + back[n] for n in range(N)], 1)

    def _query_codes(
        self, f: Float[Tensor, "T M D"], g: Float[Tensor, "T N D"], is_real: Bool[Tensor, "T N"]
    ) -> Float[Tensor, "T M D"]:
        """Read each query as often as the task has labelled items, with attention to these."""
        cell = self.query_cell
        of_f, of_r = cell.weight_ih.chunk(2, 1)
        from_f, from_g = self._map(f, of_f) + cell.bias_ih + cell.bias_hh, self._map(g, of_r)
        n_steps = is_real.sum(1)[:, None, None]
        h, c = f, torch.zeros_like(f)
        for step in range(g.shape[1]):
            attention = _masked(h @ g.mT, is_real[:, None, :]).softmax(-1)
            new_h, new_c = _lstm(from_f + attention @ from_g + self._map(h, cell.weight_hh), c)
            h, c = torch.where(step < n_steps, new_h + f, h), torch.where(step < n_steps, new_c, c)
        return h

    def _read(
        self, cell: nn.LSTMCell, x: Float[Tensor, "T N D"], is_real: Bool[Tensor, "T N"], order: Iterable[int]
    ) -> dict[int, Float[Tensor, "T D"]]:
        """Outputs of an LSTM at each index of a sequence, read in this order; padding is skipped."""
        from_x = self._map(x, cell.weight_ih) + cell.bias_ih + cell.bias_hh
        h = c = torch.zeros_like(x[:, 0])
        outputs = {}
        for n in order:
            new_h, new_c = _lstm(from_x[:, n] + self._map(h, cell.weight_hh), c)
            real = is_real[:, n, None]
            h, c = torch.where(real, new_h, h), torch.where(real, new_c, c)
            outputs[n] = h
        return outputs

    def _map(self, x: Float[Tensor, "*batch D"], weight: Float[Tensor, "E D"]) -> Float[Tensor, "*batch E"]:
        with self.network_precision(x.device):
            product: Tensor = x @ weight.mT
        return product.to(x.dtype)


def _lstm(
    gates: Float[Tensor, "*batch four_D"], c: Float[Tensor, "*batch D"]
) -> tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"]]:
    """One step of an LSTM, from its gate inputs: input, forget, cell and output, as in torch."""
    write, keep, new, show = gates.chunk(4, -1)
    c = keep.sigmoid() * c + write.sigmoid() * new.tanh()
    return show.sigmoid() * c.tanh(), c


def _lstm_cell(n_in: int, n_hidden: int, generator: torch.Generator) -> nn.LSTMCell:
    cell: nn.LSTMCell = nn.utils.skip_init(nn.LSTMCell, n_in, n_hidden)
    for parameter in cell.parameters():
        initial_weights_(parameter, n_hidden, generator)
    return cell


def _masked(scores: Float[Tensor, "..."], mask: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Set scores to the lowest value where the mask is false; finite, so gradients of empty classes are finite."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 2)
