"""Conversions of f16 where no instruction makes them (x86 before F16C): the functions that LLVM calls there, in the module.

Otherwise they would have to come from a compiler's run-time library, which a Python process need not have.
"""

from __future__ import annotations

# f16 -> f32: exponent and digits three bits of exponent further left, times 2^112; infinities and NaN get the largest exponent.
# f32 -> f16, to nearest even: below 2^-14 a sum with 1/2 rounds, elsewhere one with half of what is cut off.
CONVERSIONS = """
define float @__extendhfsf2(half %x) #0 {
  %half = bitcast half %x to i16
  %bits = zext i16 %half to i32
  %rest = and i32 %bits, 32767
  %moved = shl i32 %rest, 13
  %small = bitcast i32 %moved to float
  %scaled = fmul float %small, 0x46F0000000000000
  %finite = bitcast float %scaled to i32
  %top = or i32 %moved, 2139095040
  %special = icmp uge i32 %rest, 31744
  %size = select i1 %special, i32 %top, i32 %finite
  %minus = and i32 %bits, 32768
  %sign = shl i32 %minus, 16
  %all = or i32 %size, %sign
  %y = bitcast i32 %all to float
  ret float %y
}

define half @__truncsfhf2(float %x) #0 {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %abs = bitcast i32 %size to float
  %sum = fadd float %abs, 5.000000e-01
  %summed = bitcast float %sum to i32
  %subnormal = sub i32 %summed, 1056964608
  %last = lshr i32 %size, 13
  %odd = and i32 %last, 1
  %near = add i32 %size, 3355447295
  %even = add i32 %near, %odd
  %normal = lshr i32 %even, 13
  %tiny = icmp ult i32 %size, 947912704
  %finite = select i1 %tiny, i32 %subnormal, i32 %normal
  %large = icmp uge i32 %size, 1199570944
  %nan = icmp ugt i32 %size, 2139095040
  %end = select i1 %nan, i32 32256, i32 31744
  %value = select i1 %large, i32 %end, i32 %finite
  %minus = lshr i32 %bits, 16
  %sign = and i32 %minus, 32768
  %all = or i32 %value, %sign
  %half = trunc i32 %all to i16
  %y = bitcast i16 %half to half
  ret half %y
}
"""
