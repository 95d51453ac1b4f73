// The two blocks of LeNet: 5x5 convolution, bias, 2x2 maximum and ReLU, forward and backward.
//
// Layout. PyTorch's kernels put channels into a vector's lanes, but LeNet has 1, 3, 6 and 16 of them.
// Here a lane is an image: a group of eight images is stored as [channel][row][column][image], so
// every vector is full, whatever the network's shape, and no operation ever crosses lanes. Images
// are brought into this layout once, with their padding around them, and features leave it at the
// end. Lanes without an image (the last group of a batch of 10) hold zeros and pass no gradient.
//
// Forward. Four outputs that will be pooled together, of up to three channels, are computed in
// registers: 12 sums, 3 weights, 1 input fill the sixteen that AVX2 has. Maximum and ReLU follow at
// once, so what is stored is a quarter of the convolution's output, and one byte for each image
// that says which of the four was the largest: 0 to 3, or 4 where ReLU cut it off.
//
// Backward. The bytes spread the gradient over the four places. The gradient of a filter's row
// (2 channels x 5 columns) is summed in registers over a band of the image; the lanes are added up
// only when all groups are done. The gradient of the input is summed in registers along a row.
//
// Names: a "block" is one convolution with its pooling; `outputs` and `inputs` are channels.
#include "vectors.h"

namespace fedbench {
namespace {

constexpr int SIDE = 5;              // of a filter
constexpr int TAPS = SIDE * SIDE;    // of a filter
constexpr int WINDOW = 4;            // outputs that are pooled together
constexpr int CUT_OFF = WINDOW;      // in place of a winner's number: ReLU's output is zero
constexpr int MOST_OUTPUTS = 3;      // channels of a forward step
constexpr int BAND = 2;              // pooled rows of block 1 whose gradient is spread at a time
constexpr int MOST_COLUMNS = 10;     // gradients of a row that a step of the backward pass takes

// One block's shapes; height and width are those of its input, with padding.
struct Block {
  Size inputs, outputs, height, width;
  Size pooled_height() const { return (height - SIDE + 1) / 2; }
  Size pooled_width() const { return (width - SIDE + 1) / 2; }
  Size input_size() const { return inputs * height * width * LANES; }
  Size pooled_size() const { return outputs * pooled_height() * pooled_width() * LANES; }
  Size weights() const { return outputs * TAPS * inputs; }
};

}  // namespace

// What Python passes, in this order.
struct Geometry {
  Size count, channels, height, width, padding, middle, features;
};

namespace {

struct Network {
  Block first, second;
  Size count, groups;

  explicit Network(const Geometry& of)
      : first{of.channels, of.middle, of.height + 2 * of.padding, of.width + 2 * of.padding},
        second{of.middle, of.features, first.pooled_height(), first.pooled_width()},
        count(of.count),
        groups((of.count + LANES - 1) / LANES) {}
};

// The buffers that a forward pass leaves for the backward pass, one after the other in one piece of
// memory. Without a backward pass, all groups use the same one.
struct Kept {
  float *images, *hidden;
  std::uint8_t *winners1, *winners2;
  const Network& network;
  bool every_group;

  Kept(float* memory, const Network& of, bool keep) : network(of), every_group(keep) {
    const Size groups = keep ? of.groups : 1;
    images = memory;
    hidden = images + groups * of.first.input_size();
    winners1 = reinterpret_cast<std::uint8_t*>(hidden + groups * of.second.input_size());
    winners2 = winners1 + groups * of.first.pooled_size();
  }
  static Size floats(const Network& of, bool keep) {
    const Size bytes = of.first.pooled_size() + of.second.pooled_size();
    const Size group = of.first.input_size() + of.second.input_size() + bytes / 4;
    return group * (keep ? of.groups : 1);
  }
  float* images_of(Size group) const { return images + at(group) * network.first.input_size(); }
  float* hidden_of(Size group) const { return hidden + at(group) * network.second.input_size(); }
  std::uint8_t* winners1_of(Size group) const {
    return winners1 + at(group) * network.first.pooled_size();
  }
  std::uint8_t* winners2_of(Size group) const {
    return winners2 + at(group) * network.second.pooled_size();
  }

 private:
  Size at(Size group) const { return every_group ? group : 0; }
};

// ---------------------------------------------------------------- into the lanes, and out of them

// Eight numbers, from `start` on, of each of up to eight rows: number i of all rows in vector i.
void read_columns(const float* rows, Size stride, Size count, Size start, Size length,
                  Vector columns[LANES]) {
  const __m256i there = first_lanes(length - start);
  for (int row = 0; row < LANES; ++row)
    columns[row] = row < count ? _mm256_maskload_ps(rows + row * stride + start, there) : zero();
  transpose(columns);
}

// Images [count][height][width][channels] to [channel][row][column][image], inside their padding.
void read_images(const float* images, Size count, const Geometry& of, const Block& block,
                 float* lanes) {
  if (of.padding) std::memset(lanes, 0, sizeof(float) * block.input_size());
  const Size row_length = of.width * of.channels, stride = of.height * row_length;
  for (Size y = 0; y < of.height; ++y) {
    for (Size start = 0; start < row_length; start += LANES) {
      Vector columns[LANES];
      read_columns(images + y * row_length, stride, count, start, row_length, columns);
      for (Size i = start; i < row_length && i < start + LANES; ++i) {
        const Size x = i / of.channels, channel = i % of.channels;
        const Size row = channel * block.height + y + of.padding;
        store(lanes + (row * block.width + x + of.padding) * LANES, columns[i - start]);
      }
    }
  }
}

// Rows [count][length] to [length][image].
void read_rows(const float* rows, Size count, Size length, float* lanes) {
  for (Size start = 0; start < length; start += LANES) {
    Vector columns[LANES];
    read_columns(rows, length, count, start, length, columns);
    for (Size i = start; i < length && i < start + LANES; ++i)
      store(lanes + i * LANES, columns[i - start]);
  }
}

// [length][image] to rows [count][length].
void write_rows(const float* lanes, Size count, Size length, float* rows) {
  for (Size start = 0; start < length; start += LANES) {
    Vector columns[LANES];
    for (int i = 0; i < LANES; ++i)
      columns[i] = start + i < length ? load(lanes + (start + i) * LANES) : zero();
    transpose(columns);
    const __m256i there = first_lanes(length - start);
    for (Size row = 0; row < count; ++row)
      _mm256_maskstore_ps(rows + row * length + start, there, columns[row]);
  }
}

// ------------------------------------------------------------------------------- forward

// How many output channels the next step takes: three, but never such that one is left alone.
int outputs_of_step(Size left) {
  if (left == 4) return 2;
  return left < MOST_OUTPUTS ? static_cast<int>(left) : MOST_OUTPUTS;
}

// Weights [output][row][column][input], as the flat vector has them, in the order of their use:
// for each step's output channels, [input][row][column][output].
void pack_forward(const float* weight, const Block& block, float* packed) {
  for (Size first = 0; first < block.outputs;) {
    const int outputs = outputs_of_step(block.outputs - first);
    for (Size input = 0; input < block.inputs; ++input)
      for (int tap = 0; tap < TAPS; ++tap)
        for (int i = 0; i < outputs; ++i)
          *packed++ = weight[((first + i) * TAPS + tap) * block.inputs + input];
    first += outputs;
  }
}

// The largest of four as PyTorch's max_pool2d finds it: the first of equal ones, and a NaN wins.
// Then ReLU, which lets a NaN pass, and zeros in the lanes without an image.
void pool(const Vector values[WINDOW], Vector there, float* output, std::uint8_t* winner) {
  Vector largest = values[0];
  Vector number = zero();  // of the winner, as the bits of an integer
  for (int i = 1; i < WINDOW; ++i) {
    const Vector larger = _mm256_or_ps(_mm256_cmp_ps(values[i], largest, _CMP_GT_OQ),
                                       _mm256_cmp_ps(values[i], values[i], _CMP_UNORD_Q));
    largest = _mm256_blendv_ps(largest, values[i], larger);
    number = _mm256_blendv_ps(number, _mm256_castsi256_ps(_mm256_set1_epi32(i)), larger);
  }
  const Vector passes = _mm256_and_ps(there, _mm256_cmp_ps(largest, zero(), _CMP_NLE_UQ));
  store(output, _mm256_and_ps(largest, passes));
  const Vector cut_off = _mm256_castsi256_ps(_mm256_set1_epi32(CUT_OFF));
  const __m256i words = _mm256_castps_si256(_mm256_blendv_ps(cut_off, number, passes));
  const __m256i halves = _mm256_packs_epi32(words, words);
  const __m256i bytes = _mm256_packs_epi16(halves, halves);  // four in each half of the vector
  const int low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
  std::memcpy(winner, &low, 4);
  std::memcpy(winner + 4, &high, 4);
}

// One pooled row of OUTPUTS channels.
template <int OUTPUTS>
void forward_row(const Block& block, const float* input, const float* packed, const float* bias,
                 Size first, Size y, Vector there, float* output, std::uint8_t* winners) {
  const Size row = block.width * LANES, columns = block.pooled_width();
  const int taps = opaque(SIDE);
  for (Size x = 0; x < columns; ++x) {
    Vector sums[OUTPUTS][WINDOW];
    UNROLL
    for (int i = 0; i < OUTPUTS; ++i)
      UNROLL
      for (int place = 0; place < WINDOW; ++place) sums[i][place] = everywhere(bias[first + i]);
    const float* weight = packed;
    for (Size channel = 0; channel < block.inputs; ++channel) {
      const float* upper = input + ((channel * block.height + 2 * y) * block.width + 2 * x) * LANES;
      for (int tap_row = 0; tap_row < SIDE; ++tap_row, upper += row) {
        const float* lower = upper + row;
        for (int tap = 0; tap < taps; ++tap, weight += OUTPUTS) {
          Vector weights[OUTPUTS];
          UNROLL
          for (int i = 0; i < OUTPUTS; ++i) weights[i] = everywhere(weight[i]);
          const float* places[WINDOW] = {upper + tap * LANES, upper + (tap + 1) * LANES,
                                         lower + tap * LANES, lower + (tap + 1) * LANES};
          UNROLL
          for (int place = 0; place < WINDOW; ++place) {
            const Vector value = load(places[place]);
            UNROLL
            for (int i = 0; i < OUTPUTS; ++i)
              sums[i][place] = multiply_add(weights[i], value, sums[i][place]);
          }
        }
      }
    }
    UNROLL
    for (int i = 0; i < OUTPUTS; ++i) {
      const Size at = (((first + i) * block.pooled_height() + y) * columns + x) * LANES;
      pool(sums[i], there, output + at, winners + at);
    }
  }
}

void forward_block(const Block& block, const float* input, const float* packed, const float* bias,
                   Vector there, float* output, std::uint8_t* winners) {
  for (Size y = 0; y < block.pooled_height(); ++y) {
    const float* weights = packed;
    for (Size first = 0; first < block.outputs;) {
      const int outputs = outputs_of_step(block.outputs - first);
      const auto step = outputs == 3   ? forward_row<3>
                        : outputs == 2 ? forward_row<2>
                                       : forward_row<1>;
      step(block, input, weights, bias, first, y, there, output, winners);
      weights += outputs * block.inputs * TAPS;
      first += outputs;
    }
  }
}

// ------------------------------------------------------------------------------- backward

// Spread the gradient of pooled rows `start` to `stop` over the places of the winners:
// [output][2 * rows][2 * columns][image]. Adds its sum to the biases' gradients, lane by lane.
void spread(const Block& block, const float* gradient, const std::uint8_t* winners, Size start,
            Size stop, float* dense, float* bias_sums) {
  const Size columns = block.pooled_width(), row = 2 * columns * LANES;
  for (Size output = 0; output < block.outputs; ++output) {
    Vector sum = load(bias_sums + output * LANES);
    for (Size y = start; y < stop; ++y, dense += 2 * row) {
      Vector row_sum = zero();  // short sums round less
      for (Size x = 0; x < columns; ++x) {
        const Size at = ((output * block.pooled_height() + y) * columns + x) * LANES;
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(winners + at));
        const __m256i winner = _mm256_cvtepu8_epi32(bytes);
        const Vector value = load(gradient + at);
        const __m256i cut_off = _mm256_cmpeq_epi32(winner, _mm256_set1_epi32(CUT_OFF));
        row_sum = add(row_sum, _mm256_andnot_ps(_mm256_castsi256_ps(cut_off), value));
        UNROLL
        for (int place = 0; place < WINDOW; ++place) {
          const __m256i won = _mm256_cmpeq_epi32(winner, _mm256_set1_epi32(place));
          const Vector passed = _mm256_and_ps(value, _mm256_castsi256_ps(won));
          store(dense + (place / 2) * row + (2 * x + place % 2) * LANES, passed);
        }
      }
      sum = add(sum, row_sum);
    }
    store(bias_sums + output * LANES, sum);
  }
}

// Add the gradient of one row of the filters from one input channel to OUTPUTS output channels, over
// `rows` rows of the spread gradient. Two columns at a time share the inputs that they read.
template <int OUTPUTS>
void add_filter_row(const float* input, Size input_row, const float* gradient, Size plane,
                    Size rows, Size columns, float* const sums[OUTPUTS]) {
  Vector totals[OUTPUTS][SIDE];
  UNROLL
  for (int i = 0; i < OUTPUTS; ++i)
    UNROLL
    for (int tap = 0; tap < SIDE; ++tap) totals[i][tap] = load(sums[i] + tap * LANES);
  for (Size y = 0; y < rows; ++y, input += input_row, gradient += columns * LANES) {
    for (Size x = 0; x < columns; x += 2) {
      Vector left[OUTPUTS], right[OUTPUTS];
      UNROLL
      for (int i = 0; i < OUTPUTS; ++i) {
        left[i] = load(gradient + i * plane + x * LANES);
        right[i] = load(gradient + i * plane + (x + 1) * LANES);
      }
      UNROLL
      for (int place = 0; place <= SIDE; ++place) {
        const Vector value = load(input + (x + place) * LANES);
        UNROLL
        for (int i = 0; i < OUTPUTS; ++i) {
          if (place < SIDE) totals[i][place] = multiply_add(left[i], value, totals[i][place]);
          if (place > 0) totals[i][place - 1] = multiply_add(right[i], value, totals[i][place - 1]);
        }
      }
    }
  }
  UNROLL
  for (int i = 0; i < OUTPUTS; ++i)
    UNROLL
    for (int tap = 0; tap < SIDE; ++tap) store(sums[i] + tap * LANES, totals[i][tap]);
}

// Add the filters' gradients over `rows` rows of the spread gradient, which begin at row `start` of
// the convolution's output. `sums` is [output][input][row][column][lane].
void add_filters(const Block& block, const float* input, const float* dense, Size start, Size rows,
                 float* sums) {
  const Size columns = 2 * block.pooled_width(), plane = rows * columns * LANES;
  for (Size output = 0; output < block.outputs; output += 2) {
    for (Size channel = 0; channel < block.inputs; ++channel) {
      for (int tap_row = 0; tap_row < SIDE; ++tap_row) {
        const Size row = channel * block.height + start + tap_row;
        const float* from = input + row * block.width * LANES;
        float* own[2];
        for (Size i = 0; i < 2; ++i)
          own[i] = sums + ((output + i) * block.inputs + channel) * TAPS * LANES +
                   tap_row * SIDE * LANES;
        const float* gradient = dense + output * plane;
        if (output + 1 < block.outputs)
          add_filter_row<2>(from, block.width * LANES, gradient, plane, rows, columns, own);
        else
          add_filter_row<1>(from, block.width * LANES, gradient, plane, rows, columns, own);
      }
    }
  }
}

// Weights [output][row][column][input] to [input][output][row][column], the order of the input's
// gradient.
void pack_backward(const float* weight, const Block& block, float* packed) {
  for (Size input = 0; input < block.inputs; ++input)
    for (Size output = 0; output < block.outputs; ++output)
      for (int tap = 0; tap < TAPS; ++tap)
        *packed++ = weight[(output * TAPS + tap) * block.inputs + input];
}

// The gradient of one row of an input channel, as far as COLUMNS columns of the output's gradient
// reach: COLUMNS + 4 sums. `fresh` is false when columns further left have reached the first four.
template <int COLUMNS>
void input_row(const Block& block, const float* dense, const float* packed, Size y, bool fresh,
               float* result) {
  constexpr int WIDTH = COLUMNS + SIDE - 1;
  const Size rows = 2 * block.pooled_height(), row = 2 * block.pooled_width() * LANES;
  Vector sums[WIDTH];
  UNROLL
  for (int x = 0; x < WIDTH; ++x)
    sums[x] = fresh || x >= SIDE - 1 ? zero() : load(result + x * LANES);
  for (Size output = 0; output < block.outputs; ++output) {
    for (int tap_row = 0; tap_row < SIDE; ++tap_row) {
      const Size from = y - tap_row;
      if (from < 0 || from >= rows) continue;
      const float* gradient = dense + (output * rows + from) * row;
      const float* weight = packed + output * TAPS + tap_row * SIDE;
      UNROLL
      for (int tap = 0; tap < SIDE; ++tap) {
        const Vector own = everywhere(weight[tap]);
        UNROLL
        for (int x = 0; x < COLUMNS; ++x)
          sums[x + tap] = multiply_add(own, load(gradient + x * LANES), sums[x + tap]);
      }
    }
  }
  UNROLL
  for (int x = 0; x < WIDTH; ++x) store(result + x * LANES, sums[x]);
}

// The gradient of a block's input, [input][row][column][image].
void input_gradient(const Block& block, const float* dense, const float* packed, float* result) {
  const Size columns = 2 * block.pooled_width(), reached = columns + SIDE - 1;
  for (Size y = 0; y < block.height; ++y) {
    for (Size channel = 0; channel < block.inputs; ++channel) {
      const float* weights = packed + channel * block.outputs * TAPS;
      float* row = result + (channel * block.height + y) * block.width * LANES;
      for (Size x = 0; x < columns;) {
        const Size left = columns - x;  // even, as two columns are pooled into one
        const auto step = left >= MOST_COLUMNS ? input_row<MOST_COLUMNS>
                          : left == 8          ? input_row<8>
                          : left == 6          ? input_row<6>
                          : left == 4          ? input_row<4>
                                               : input_row<2>;
        step(block, dense + x * LANES, weights, y, x == 0, row + x * LANES);
        x += left < MOST_COLUMNS ? left : MOST_COLUMNS;
      }
      for (Size x = reached; x < block.width; ++x) store(row + x * LANES, zero());
    }
  }
}

// Add up the lanes: sums [output][input][row][column][lane] to the flat vector's order.
void write_filters(const Block& block, const float* sums, float* gradient) {
  for (Size output = 0; output < block.outputs; ++output)
    for (Size input = 0; input < block.inputs; ++input)
      for (int tap = 0; tap < TAPS; ++tap, sums += LANES)
        gradient[(output * TAPS + tap) * block.inputs + input] = sum_of_lanes(load(sums));
}

Size band_size(const Block& block) {
  return block.outputs * 2 * BAND * 2 * block.pooled_width() * LANES;
}

// Which gradients a backward pass computes: that of the last bias, the second block's, or all.
enum Wanted { SECOND_BIAS, SECOND_BLOCK, BOTH_BLOCKS };

}  // namespace

extern "C" {

// How many floats of memory a forward pass needs. With `keep`, the backward pass reads them.
Size lenet_forward_floats(const Geometry* geometry, int keep) {
  const Network network(*geometry);
  return Kept::floats(network, keep) + network.first.weights() + network.second.weights() +
         network.second.pooled_size();
}

// images: [count][height][width][channels]; weights in the flat vector's order; features: rows of
// [features * height * width], in PyTorch's order.
void lenet_forward(const Geometry* geometry, int keep, const float* images, const float* weight1,
                   const float* bias1, const float* weight2, const float* bias2, float* memory,
                   float* features) {
  const Network network(*geometry);
  const Block &first = network.first, &second = network.second;
  const Kept kept(memory, network, keep);
  float* packed1 = memory + Kept::floats(network, keep);
  float* packed2 = packed1 + first.weights();
  float* last = packed2 + second.weights();
  pack_forward(weight1, first, packed1);
  pack_forward(weight2, second, packed2);
  const Size image = geometry->height * geometry->width * geometry->channels;
  const Size row = second.pooled_size() / LANES;
  for (Size group = 0; group < network.groups; ++group) {
    const Size done = group * LANES, left = network.count - done;
    const Size count = left < LANES ? left : LANES;
    const Vector there = _mm256_castsi256_ps(first_lanes(count));
    read_images(images + done * image, count, *geometry, first, kept.images_of(group));
    forward_block(first, kept.images_of(group), packed1, bias1, there, kept.hidden_of(group),
                  kept.winners1_of(group));
    forward_block(second, kept.hidden_of(group), packed2, bias2, there, last,
                  kept.winners2_of(group));
    write_rows(last, count, row, features + done * row);
  }
}

// How many floats of memory a backward pass needs besides what the forward pass left.
Size lenet_backward_floats(const Geometry* geometry) {
  const Network network(*geometry);
  const Block &first = network.first, &second = network.second;
  const Size sums = (first.weights() + first.outputs + second.weights() + second.outputs) * LANES;
  const Size dense = WINDOW * second.pooled_size();
  return sums + second.weights() + second.pooled_size() + dense + second.input_size() +
         band_size(first);
}

// Gradients of weights and biases, in the flat vector's order, from that of the features; with a
// smaller `wanted`, only the last ones of them.
void lenet_backward(const Geometry* geometry, int wanted, const float* gradient,
                    const float* weight2, float* forward_memory, float* memory,
                    float* weight1_gradient, float* bias1_gradient, float* weight2_gradient,
                    float* bias2_gradient) {
  const Network network(*geometry);
  const Block &first = network.first, &second = network.second;
  const Kept kept(forward_memory, network, true);
  float* sums1 = memory;
  float* sums2 = sums1 + first.weights() * LANES;
  float* bias_sums1 = sums2 + second.weights() * LANES;
  float* bias_sums2 = bias_sums1 + first.outputs * LANES;
  float* packed = bias_sums2 + second.outputs * LANES;
  float* arriving = packed + second.weights();
  float* dense = arriving + second.pooled_size();
  float* hidden_gradient = dense + WINDOW * second.pooled_size();
  float* band = hidden_gradient + second.input_size();
  std::memset(memory, 0, sizeof(float) * (packed - memory));
  pack_backward(weight2, second, packed);
  const Size row = second.pooled_size() / LANES, rows1 = first.pooled_height();
  for (Size group = 0; group < network.groups; ++group) {
    const Size done = group * LANES, left = network.count - done;
    read_rows(gradient + done * row, left < LANES ? left : LANES, row, arriving);
    spread(second, arriving, kept.winners2_of(group), 0, second.pooled_height(), dense, bias_sums2);
    if (wanted < SECOND_BLOCK) continue;
    add_filters(second, kept.hidden_of(group), dense, 0, 2 * second.pooled_height(), sums2);
    if (wanted < BOTH_BLOCKS) continue;
    input_gradient(second, dense, packed, hidden_gradient);
    for (Size start = 0; start < rows1; start += BAND) {
      const Size stop = start + BAND < rows1 ? start + BAND : rows1;
      spread(first, hidden_gradient, kept.winners1_of(group), start, stop, band, bias_sums1);
      add_filters(first, kept.images_of(group), band, 2 * start, 2 * (stop - start), sums1);
    }
  }
  for (Size i = 0; i < second.outputs; ++i)
    bias2_gradient[i] = sum_of_lanes(load(bias_sums2 + i * LANES));
  if (wanted < SECOND_BLOCK) return;
  write_filters(second, sums2, weight2_gradient);
  if (wanted < BOTH_BLOCKS) return;
  write_filters(first, sums1, weight1_gradient);
  for (Size i = 0; i < first.outputs; ++i)
    bias1_gradient[i] = sum_of_lanes(load(bias_sums1 + i * LANES));
}

}  // extern "C"
}  // namespace fedbench
