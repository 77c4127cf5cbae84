"""Observations in, embeddings out, and back: shapes of every kind; everything is encoded and can be decoded."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.networks.actor_critic import SpaceEncoding
from agents.networks.heads import symlog
from agents.world_model.model import ObservationDecoder, ObservationEncoder
from envs.nethack.view import View
from lodestar.numerics.descent import Flat

ACTIONS = spaces.Discrete(3)


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def codec_of(*shapes, numbers=4):
    parts = {f"eye{i}": image(*shape) for i, shape in enumerate(shapes)}
    return SpaceEncoding(spaces.Dict(parts | ({"n": spaces.Box(-9, 9, (numbers,))} if numbers else {})), ACTIONS)


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make()


def drawn(encoding, *leading):
    g = torch.Generator().manual_seed(0)
    vector = torch.randn(*leading, encoding.obs_size, generator=g)
    pixels = {k: torch.randint(0, 256, (*leading, *s), generator=g).byte() for k, s in encoding.images.items()}
    return vector, pixels


@pytest.mark.parametrize("shapes", [(), ((3, 64, 64),), ((3, 7, 7), (1, 21, 18)), ((3, 5, 6),), ((1, 84, 84),)])
@pytest.mark.parametrize("numbers", [0, 4])
def test_any_observation_becomes_an_embedding_and_features_become_one(shapes, numbers):
    if not shapes and not numbers:
        return
    encoding = codec_of(*shapes, numbers=numbers)
    encoder, decoder = ObservationEncoder(encoding, 16), ObservationDecoder(encoding, 10)
    vector, pixels = drawn(encoding, 3, 2)
    assert encoder(vector, pixels).shape == (3, 2, 16) and encoder.size == 16
    with torch.no_grad():
        said, modalities = decoder(torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0)))
    assert said.shape == vector.shape and modalities.keys() == pixels.keys()
    for key, picture in modalities.items():
        assert picture.shape == pixels[key].shape and picture.min() >= 0 and picture.max() <= 1
    assert decoder.loss(torch.zeros(3, 2, 10), vector, pixels).shape == (3, 2)


def test_bare_spaces_are_read_too():
    for space in (image(3, 16, 16), spaces.Box(-1, 1, (5,)), spaces.Discrete(4)):
        encoding = SpaceEncoding(space, ACTIONS)
        vector, pixels = drawn(encoding, 6)
        assert ObservationEncoder(encoding, 8)(vector, pixels).shape == (6, 8)
        said, modalities = ObservationDecoder(encoding, 8)(torch.zeros(6, 8))
        assert said.shape == vector.shape and modalities.keys() == pixels.keys()


def test_a_row_is_embedded_alone_whatever_its_batch():
    encoding = codec_of((3, 16, 16))
    encoder = ObservationEncoder(encoding, 8)
    vector, pixels = drawn(encoding, 4, 2)
    whole = encoder(vector, pixels)
    part = encoder(vector[2, 1], {k: v[2, 1] for k, v in pixels.items()})
    torch.testing.assert_close(whole[2, 1], part)


def test_every_number_and_every_pixel_is_read():
    encoding = codec_of((1, 9, 10), (2, 5, 5))
    encoder = seeded(lambda: ObservationEncoder(encoding, 8))
    vector, pixels = drawn(encoding, 1)
    vector.requires_grad_()
    pixels = {k: v.float().requires_grad_() for k, v in pixels.items()}
    (encoder(vector, pixels) * torch.arange(8.0)).sum().backward()
    assert (vector.grad != 0).all() and all((v.grad != 0).all() for v in pixels.values())


def test_large_numbers_are_squeezed():
    encoding = codec_of(numbers=2)
    encoder = ObservationEncoder(encoding, 8)
    with torch.no_grad():
        big = torch.tensor([[1e6, -1e6]])
        torch.testing.assert_close(encoder(big, {}), encoder.join(encoder.mlp(symlog(big))))


def test_a_decoder_learns_to_show_what_it_was_shown():
    encoding = codec_of((1, 8, 8), numbers=2)
    encoder, decoder = seeded(lambda: (ObservationEncoder(encoding, 32), ObservationDecoder(encoding, 32)))
    vector = torch.tensor([[1.0, 0.0], [0.0, 300.0]])
    pictures = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    pictures[0, 0, :4], pictures[1, 0, :, 2] = 255, 255
    flat, losses = Flat.of_parameters([*encoder.parameters(), *decoder.parameters()]), []
    for _ in range(80):
        loss = decoder.loss(encoder(vector, {"eye0": pictures}), vector, {"eye0": pictures}).mean()
        flat.grad.zero_()
        loss.backward()
        flat.step(5e-3, 100.0)
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]
    said, modalities = decoder(encoder(vector, {"eye0": pictures}))
    assert torch.equal(modalities["eye0"] > 0.5, pictures > 127)
    torch.testing.assert_close(said, symlog(vector), atol=0.2, rtol=0)


def test_nethack_goes_through_glyphs():
    encoding = SpaceEncoding(View(crop=5, message=True).space(), ACTIONS)
    encoder = ObservationEncoder(encoding, 16, net="glyphs")
    vector, _ = drawn(encoding, 3, 2)
    assert encoder(vector, {}).shape == (3, 2, 16)
    assert encoder.join[0].in_features == encoder.trunk.width == 256
    with pytest.raises(ValueError, match=r"needs observations in parts"):
        ObservationEncoder(codec_of(), 8, net="glyphs")


def test_a_picture_of_64_pixels_becomes_4_by_4():
    encoder = ObservationEncoder(codec_of((3, 64, 64), numbers=0), 16)
    assert encoder.join[0].in_features == 64 * 4 * 4
    small = ObservationEncoder(codec_of((3, 7, 7), numbers=0), 16)
    assert small.join[0].in_features == 32 * 7 * 7
