"""Networks as people write them in plain PyTorch."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, channels: int, planes: int, stride: int, fork: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if fork:
            shortcut = nn.Conv2d(channels, 4 * planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.downsample is not None:
            x = self.downsample(x)
        y += x
        return self.relu(y)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels, stages = 64, []
        for stage, (blocks, stride) in enumerate(zip((3, 4, 6, 3), (1, 2, 2, 2), strict=True)):
            planes, rows = 64 * 2**stage, []
            for block in range(blocks):
                rows.append(Bottleneck(channels, planes, stride if not block else 1, not block))
                channels = 4 * planes
            stages.append(nn.Sequential(*rows))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rows, channels = [], 3
        for filters in (16, "M", 32, 32, "M", 64, "M"):
            if filters == "M":
                rows.append(nn.MaxPool2d(2, 2))
                continue
            rows += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(True)]
            channels = filters
        self.features = nn.Sequential(*rows)
        self.avgpool = nn.AdaptiveAvgPool2d((4, 4))
        self.classifier = nn.Sequential(
            nn.Linear(64 * 16, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 10)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def double(channels: int, filters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, filters, 3, padding=1, bias=False),
        nn.InstanceNorm3d(filters, affine=True),
        nn.LeakyReLU(0.1, True),
        nn.Conv3d(filters, filters, 3, padding=1, bias=False),
        nn.BatchNorm3d(filters),
        nn.ReLU(True),
    )


class UNet3D(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        pairs = list(zip((1, *widths), widths, strict=False))
        self.down = nn.ModuleList([double(a, b) for a, b in pairs])
        self.pool = nn.MaxPool3d(2)
        ups = list(itertools.pairwise(widths))
        self.up = nn.ModuleList([nn.ConvTranspose3d(b, a, 2, 2) for a, b in ups])
        self.merge = nn.ModuleList([double(2 * a, a) for a in widths[:-1]])
        self.out = nn.Conv3d(widths[0], 3, 1)

    def forward(self, x):
        across = []
        for level, down in enumerate(self.down):
            x = down(x)
            if level < len(self.down) - 1:
                across.append(x)
                x = self.pool(x)
        for level in reversed(range(len(self.up))):
            x = self.merge[level](torch.cat([across[level], self.up[level](x)], 1))
        return self.out(x)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        gate = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(F.silu(self.down(gate))))


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False)
        self.grouped = nn.Conv2d(32, 64, 3, 1, 1, groups=4)
        self.se = SqueezeExcitation(64)
        self.point = nn.Conv2d(64, 64, 1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = F.hardswish(self.bn(self.stem(x)))
        x = self.se(self.grouped(F.relu6(self.depthwise(x))))
        return self.fc(F.adaptive_avg_pool2d(self.point(x), 1).flatten(1))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(8 + 8 * i, 8, 3, padding=1) for i in range(4)])
        self.fc = nn.Linear(40, 7)

    def forward(self, x):
        features = [self.stem(x)]
        for conv in self.convs:
            features.append(F.relu(conv(torch.cat(features, 1))))
        return self.fc(torch.flatten(F.avg_pool2d(torch.cat(features, 1), 16), 1))


class Signal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(12, 24, 9, padding="same")
        self.pool = nn.MaxPool1d(2)
        self.up = nn.Upsample(scale_factor=2)
        self.out = nn.Conv1d(24, 3, 1)

    def forward(self, x):
        return self.out(self.up(self.pool(self.conv(x))))


class Encoder(nn.Module):
    """PyTorch's own layers of a transformer, which fold samples and heads into one dim."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(64, 100)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)))


class WrittenOut(nn.Module):
    """Attention as two products and a softmax, and a head with the weight of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.position = nn.Parameter(torch.zeros(1, 16, 64))
        self.norm = nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.proj = nn.Linear(64, 64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x) + self.position
        samples, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).reshape(samples, tokens, 3, 4, 16)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        scores = (query @ key.transpose(-2, -1)) * 0.25
        scores = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        y = (scores @ value).transpose(1, 2).reshape(samples, tokens, width)
        return self.head(x + self.proj(y))


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Odd(nn.Module):
    """Operators that no kind of layer describes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.scale = nn.Parameter(torch.zeros(16, 64))
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        y = torch.cumsum(self.first(x) * torch.special.i0(self.scale), -1)
        return self.last(torch.einsum("bij,bkj->bik", y, torch.flip(y, (1,))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.fc(x)
        if x.sum() > 0:
            x = x + 1
        return x


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.fc(x)
        return x[x > 0] * 2


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        x = self.fc(x)
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


class Prints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        raise RuntimeError("not today")


def tokens(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64)


def build() -> ResNet50:
    return ResNet50()


def sample() -> tuple[torch.Tensor, ...]:
    return (torch.empty(8, 3, 224, 224, device="meta"),)


def broken() -> ResNet50:
    raise OSError("no such weights")


class Shared(nn.Module):
    """A layer that runs twice, and the weight of one that another reads without its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.unread, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        F.relu(self.unread(x))
        x = torch.tanh(self.step(torch.tanh(self.step(x))))
        return self.last(F.linear(x, self.step.weight) + self.unread(x))


class Towers(nn.Module):
    """Two inputs of different shapes, one of which is put into bags."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.words, self.last = nn.EmbeddingBag(100, 8), nn.Linear(16, 4)

    def forward(self, image, ids, target):
        x = torch.cat([self.image(image), self.words(ids)], 1)
        return F.cross_entropy(self.last(x), target)


class Crossed(nn.Module):
    """Attention whose keys are of another input: one weight is split for both."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.last = nn.Linear(32, 4)

    def forward(self, x, y):
        return self.last(self.attention(x, y, y, need_weights=False)[0])


class Cell(nn.Module):
    """A recurrent cell written out: its first state is no sample's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 8)
        for at in range(x.shape[1]):
            state = torch.tanh(self.enter(x[:, at]) + self.again(state))
        return self.last(state)


class Vision(nn.Module):
    """Patches of images as tokens, whose features are cut by steps."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        return self.last(torch.stack([x[..., 0::2], x[..., 1::2]], -1).flatten(-2))


class Memory(nn.Module):
    """Tokens that a recurrent layer reads."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(40, 8), nn.Linear(16, 40)
        self.layer = nn.LSTM(8, 16, 2, batch_first=batch_first)

    def forward(self, x):
        return self.last(self.layer(self.tokens(x))[0])


class Holds(nn.Module):
    """A module that is a part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), self

    def forward(self, x):
        return self.one(x)


class Leaves(nn.Module):
    """A module that ends the program."""

    def forward(self, x):
        raise SystemExit(0)


class Nothing(nn.Module):
    """A module whose output has no values."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 0)

    def forward(self, x):
        return self.one(x)


class Property:
    @property
    def network(self):
        raise OSError("no such weights")


def leaves():
    raise SystemExit(0)


def own_failure():
    raise BaseException("of its own kind")


def holds_itself():
    rows = []
    rows.append(rows)
    return rows


def makes_itself():
    return makes_itself


property_of = Property()


def says_much():
    print("made")
    return nn.Sequential(nn.Linear(8, 8), Says())


class Says(nn.Module):
    """A module that prints when it runs."""

    def forward(self, x):
        print("run")
        return x * 2


class SeveralLosses(nn.Module):
    """A module that adds up losses."""

    def forward(self, x):
        return nn.functional.cross_entropy(x, x) + nn.functional.cross_entropy(x, 1.0 - x)
