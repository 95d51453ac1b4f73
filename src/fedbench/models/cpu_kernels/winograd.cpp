// Winograd's transforms F(4x4, 3x3) for 3x3 convolutions with padding 1; see torch_layers.py.
//
// Images are [image][row][column][channel], with a multiple of eight channels: a vector holds eight
// channels of one pixel. A tile is 6x6 pixels, 4 apart from the next, so tiles overlap by two and
// reach one pixel into the padding. Transformed tiles are 36 matrices [tile][channel], one for each
// position, at 36 addresses; PyTorch multiplies them with the transformed filters.
//
// The transforms are those of torch_layers.py, for the points 0, 1/2, -1/2, 3/2, -3/2 and infinity,
// as few additions and multiplications as their symmetry allows: the values at a point and at its
// negative are a sum and a difference of the same two terms.
#include "vectors.h"

namespace fedbench {
namespace {

constexpr int TILE = 6, STEP = 4;  // pixels of a tile's side, and from one tile to the next

using Transform = void (*)(const Vector*, Vector*);

// scale * value + rest
inline Vector scaled(float scale, Vector value, Vector rest) {
  return multiply_add(everywhere(scale), value, rest);
}
inline Vector scaled(float scale, Vector value) { return multiply(everywhere(scale), value); }

// Six inputs to their values at the six points.
inline void inputs(const Vector* d, Vector* t) {
  const Vector even1 = scaled(-2.25f, d[2], d[4]), odd1 = scaled(0.5f, d[3], scaled(-1.125f, d[1]));
  const Vector even2 = scaled(-0.25f, d[2], d[4]), odd2 = scaled(1.5f, d[3], scaled(-0.375f, d[1]));
  t[0] = scaled(0.5625f, d[0], scaled(-2.5f, d[2], d[4]));
  t[1] = add(even1, odd1);
  t[2] = subtract(even1, odd1);
  t[3] = add(even2, odd2);
  t[4] = subtract(even2, odd2);
  t[5] = scaled(0.5625f, d[1], scaled(-2.5f, d[3], d[5]));
}

// The transpose of `inputs`: gradients of the values to gradients of the inputs.
inline void inputs_transposed(const Vector* t, Vector* d) {
  const Vector sum1 = add(t[1], t[2]), difference1 = subtract(t[1], t[2]);
  const Vector sum2 = add(t[3], t[4]), difference2 = subtract(t[3], t[4]);
  d[0] = scaled(0.5625f, t[0]);
  d[1] = scaled(-1.125f, difference1, scaled(-0.375f, difference2, scaled(0.5625f, t[5])));
  d[2] = scaled(-2.25f, sum1, scaled(-0.25f, sum2, scaled(-2.5f, t[0])));
  d[3] = scaled(1.5f, difference2, scaled(0.5f, difference1, scaled(-2.5f, t[5])));
  d[4] = add(t[0], add(sum1, sum2));
  d[5] = t[5];
}

// Products at the six points to four outputs.
inline void outputs(const Vector* m, Vector* y) {
  const Vector sum1 = add(m[1], m[2]), difference1 = subtract(m[1], m[2]);
  const Vector sum2 = add(m[3], m[4]), difference2 = subtract(m[3], m[4]);
  y[0] = add(m[0], add(sum1, sum2));
  y[1] = scaled(1.5f, difference2, scaled(0.5f, difference1));
  y[2] = scaled(2.25f, sum2, scaled(0.25f, sum1));
  y[3] = scaled(3.375f, difference2, scaled(0.125f, difference1, m[5]));
}

// The transpose of `outputs`: gradients of four outputs to gradients of the products.
inline void outputs_transposed(const Vector* y, Vector* m) {
  const Vector even1 = scaled(0.25f, y[2], y[0]), odd1 = scaled(0.125f, y[3], scaled(0.5f, y[1]));
  const Vector even2 = scaled(2.25f, y[2], y[0]), odd2 = scaled(3.375f, y[3], scaled(1.5f, y[1]));
  m[0] = y[0];
  m[1] = add(even1, odd1);
  m[2] = subtract(even1, odd1);
  m[3] = add(even2, odd2);
  m[4] = subtract(even2, odd2);
  m[5] = y[3];
}

// Apply a transform along both sides of a square: rows [FROM][FROM] to [TO][TO].
template <int FROM, int TO, Transform transform>
inline void transform_square(const Vector from[FROM][FROM], Vector to[TO][TO]) {
  Vector half[FROM][TO];  // [column][row]
  UNROLL
  for (int x = 0; x < FROM; ++x) {
    Vector column[FROM];
    UNROLL
    for (int y = 0; y < FROM; ++y) column[y] = from[y][x];
    transform(column, half[x]);
  }
  UNROLL
  for (int y = 0; y < TO; ++y) {
    Vector row[FROM];
    UNROLL
    for (int x = 0; x < FROM; ++x) row[x] = half[x][y];
    transform(row, to[y]);
  }
}

// Images as Python describes them.
struct Images {
  Size count, height, width, channels;
};

constexpr int PLACES = TILE * TILE;

// Where a tile's pixels are: the addresses of their first channels, or null outside the image.
// SIDE is the side of the square; BEFORE is how far it begins before the tile's first output.
template <int SIDE, int BEFORE, class Pixel>
struct Square {
  Pixel* at[SIDE][SIDE];

  Square(const Images& of, Pixel* image, Size top, Size left) {
    for (int y = 0; y < SIDE; ++y)
      for (int x = 0; x < SIDE; ++x) {
        const Size row = top + y - BEFORE, column = left + x - BEFORE;
        const bool inside = row >= 0 && row < of.height && column >= 0 && column < of.width;
        at[y][x] = inside ? image + (row * of.width + column) * of.channels : nullptr;
      }
  }
};

// Calls work(tile's pixels, its first number in each of the 36 matrices) for every tile.
template <int SIDE, int BEFORE, class Pixel, class Work>
inline void for_each_tile(const Images& of, Pixel* images, Work work) {
  Size first = 0;
  for (Size image = 0; image < of.count; ++image, images += of.height * of.width * of.channels)
    for (Size y = 0; y < of.height; y += STEP)
      for (Size x = 0; x < of.width; x += STEP, first += of.channels)
        work(Square<SIDE, BEFORE, Pixel>(of, images, y, x), first);
}

}  // namespace

extern "C" {

// Inputs to transformed tiles: [image][row][column][channel] to 36 x [tile][channel].
void winograd_inputs(const Images* of, const float* images, float* const* tiles) {
  const Size channels = of->channels;
  for_each_tile<TILE, 1>(*of, images, [=](const auto& square, Size first) {
    for (Size channel = 0; channel < channels; channel += LANES) {
      Vector pixels[TILE][TILE], values[TILE][TILE];
      UNROLL
      for (int y = 0; y < TILE; ++y)
        UNROLL
        for (int x = 0; x < TILE; ++x)
          pixels[y][x] = square.at[y][x] ? load(square.at[y][x] + channel) : zero();
      transform_square<TILE, TILE, inputs>(pixels, values);
      UNROLL
      for (int i = 0; i < PLACES; ++i)
        store(tiles[i] + first + channel, values[i / TILE][i % TILE]);
    }
  });
}

// Products to outputs: 36 x [tile][channel] to [image][row][column][channel].
void winograd_outputs(const Images* of, const float* const* products, float* images) {
  const Size channels = of->channels;
  for_each_tile<STEP, 0>(*of, images, [=](const auto& square, Size first) {
    for (Size channel = 0; channel < channels; channel += LANES) {
      Vector values[TILE][TILE], pixels[STEP][STEP];
      UNROLL
      for (int i = 0; i < PLACES; ++i)
        values[i / TILE][i % TILE] = load(products[i] + first + channel);
      transform_square<TILE, STEP, outputs>(values, pixels);
      UNROLL
      for (int y = 0; y < STEP; ++y)
        UNROLL
        for (int x = 0; x < STEP; ++x) store(square.at[y][x] + channel, pixels[y][x]);
    }
  });
}

// Gradients of the outputs to gradients of the products.
void winograd_outputs_backward(const Images* of, const float* images, float* const* products) {
  const Size channels = of->channels;
  for_each_tile<STEP, 0>(*of, images, [=](const auto& square, Size first) {
    for (Size channel = 0; channel < channels; channel += LANES) {
      Vector pixels[STEP][STEP], values[TILE][TILE];
      UNROLL
      for (int y = 0; y < STEP; ++y)
        UNROLL
        for (int x = 0; x < STEP; ++x) pixels[y][x] = load(square.at[y][x] + channel);
      transform_square<STEP, TILE, outputs_transposed>(pixels, values);
      UNROLL
      for (int i = 0; i < PLACES; ++i)
        store(products[i] + first + channel, values[i / TILE][i % TILE]);
    }
  });
}

// Gradients of the transformed tiles to those of the inputs, which are added to `images`: pixels
// belong to up to four tiles.
void winograd_inputs_backward(const Images* of, const float* const* tiles, float* images) {
  const Size channels = of->channels;
  for_each_tile<TILE, 1>(*of, images, [=](const auto& square, Size first) {
    for (Size channel = 0; channel < channels; channel += LANES) {
      Vector values[TILE][TILE], pixels[TILE][TILE];
      UNROLL
      for (int i = 0; i < PLACES; ++i)
        values[i / TILE][i % TILE] = load(tiles[i] + first + channel);
      transform_square<TILE, TILE, inputs_transposed>(values, pixels);
      UNROLL
      for (int y = 0; y < TILE; ++y)
        UNROLL
        for (int x = 0; x < TILE; ++x)
          if (float* to = square.at[y][x])
            store(to + channel, add(load(to + channel), pixels[y][x]));
    }
  });
}

// A matrix [row][column] with a multiple of eight columns to [column][row].
void winograd_transpose(Size rows, Size columns, const float* from, float* to) {
  const Size whole = rows - rows % LANES;
  for (Size column = 0; column < columns; column += LANES) {
    for (Size row = 0; row < whole; row += LANES) {
      Vector square[LANES];
      UNROLL
      for (int i = 0; i < LANES; ++i) square[i] = load(from + (row + i) * columns + column);
      transpose(square);
      UNROLL
      for (int i = 0; i < LANES; ++i) store(to + (column + i) * rows + row, square[i]);
    }
    for (Size row = whole; row < rows; ++row)
      for (int i = 0; i < LANES; ++i)
        to[(column + i) * rows + row] = from[row * columns + column + i];
  }
}

}  // extern "C"
}  // namespace fedbench
