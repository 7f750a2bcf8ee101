// A second model of the dot product, from docs/numbers.md alone: one dot product at a time, by the x87's 64-bit significands.
// A product of two elements, its place in the window and the sum of a chunk are exact in 80 bits, so truncation is a conversion to an integer
// and rounding the processor's own conversion to float.
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

struct Element { long double value; int exp; int kind; };  // kind: 0 zero, 1 number, 2 infinity, 3 NaN
struct Format { int bits, exp_bits, frac_bits, bias, nan; };  // nan: 0 none, 1 as IEEE 754, 2 all ones

Element decode(uint32_t code, const Format& f, int scale) {
    const int sign = code >> (f.bits - 1) & 1, field = code >> f.frac_bits & ((1 << f.exp_bits) - 1), frac = code & ((1 << f.frac_bits) - 1);
    const bool top = field == (1 << f.exp_bits) - 1;
    if (scale == 255 || (f.nan == 2 && top && frac == (1 << f.frac_bits) - 1) || (f.nan == 1 && top && frac)) return {0, 0, 3};
    if (f.nan == 1 && top) return {sign ? -1.0L : 1.0L, 0, 2};
    const int exp = (field ? field : 1) - f.bias + scale - 127;
    const long double sig = (field ? 1.0L : 0.0L) + (long double)frac / (1 << f.frac_bits);
    if (sig == 0) return {sign ? -0.0L : 0.0L, 0, 0};
    return {std::ldexp(sign ? -sig : sig, exp), exp, 1};
}

uint32_t bits_of(float x) {
    union { float f; uint32_t u; } v{x};
    return v.u;
}

const uint32_t NOT_A_NUMBER = 0x7FC00000;

}  // namespace

extern "C" void second_dot(const uint32_t* a, const uint32_t* b, int m, int n, int k, const int* fa, const int* fb, const uint8_t* scale_a,
                           const uint8_t* scale_b, int block, uint32_t* out) {
    const Format A{fa[0], fa[1], fa[2], fa[3], fa[4]}, B{fb[0], fb[1], fb[2], fb[3], fb[4]};
    const int blocks = block ? (k + block - 1) / block : 0;
    std::vector<Element> x(size_t(m) * k), y(size_t(n) * k);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < k; j++) x[size_t(i) * k + j] = decode(a[size_t(i) * k + j], A, block ? scale_a[i * blocks + j / block] : 127);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++) y[size_t(i) * k + j] = decode(b[size_t(i) * k + j], B, block ? scale_b[i * blocks + j / block] : 127);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const Element *p = &x[size_t(i) * k], *q = &y[size_t(j) * k];
            bool nan = false, plus = false, minus = false, any = false;
            int top = -100000;
            for (int l = 0; l < k; l++) {
                if (p[l].kind + q[l].kind == 2 && p[l].kind == 1) {
                    any = true;
                    if (p[l].exp + q[l].exp > top) top = p[l].exp + q[l].exp;
                } else if (p[l].kind == 3 || q[l].kind == 3) {
                    nan = true;
                } else if (p[l].kind == 2 || q[l].kind == 2) {
                    if (p[l].kind == 0 || q[l].kind == 0) nan = true;
                    else (p[l].value < 0) == (q[l].value < 0) ? plus = true : minus = true;
                }
            }
            uint32_t& r = out[size_t(i) * n + j];
            if (nan || (plus && minus)) { r = NOT_A_NUMBER; continue; }
            if (plus || minus) { r = plus ? 0x7F800000u : 0xFF800000u; continue; }
            if (!any) { r = 0; continue; }
            const long double unit = std::ldexp(1.0L, 48 - top);
            int64_t sum = 0;
            for (int l = 0; l < k; l++)
                if (p[l].kind == 1 && q[l].kind == 1) sum += int64_t(p[l].value * q[l].value * unit);
            r = sum ? bits_of(float(std::ldexp((long double)sum, top - 48))) : 0;
        }
}
