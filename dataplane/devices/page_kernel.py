"""Kernel that copies pages of device memory and registered host memory, as PTX for all devices from compute capability
7.5 on; the driver translates it when it is loaded.

It is this CUDA function, of which each thread reads four words before it writes them:

    struct __align__(16) Words { unsigned long long a, b; };

    extern "C" __global__ void __launch_bounds__(1024)
    copy_pages(const Words *const *sources, Words *const *targets, unsigned pages, unsigned words)
    {
        unsigned teams = blockDim.x / 256;
        for (unsigned page = blockIdx.x * teams + threadIdx.x / 256; page < pages; page += gridDim.x * teams) {
            const Words *source = sources[page];
            Words *target = targets[page];
            unsigned at = threadIdx.x % 256;
            for (; at + 3 * 256 < words; at += 4 * 256) {
                Words one = source[at], two = source[at + 256], three = source[at + 512], four = source[at + 768];
                target[at] = one;
                target[at + 256] = two;
                target[at + 512] = three;
                target[at + 768] = four;
            }
            for (; at < words; at += 256)
                target[at] = source[at];
        }
    }

`nvcc -ptx -arch=compute_75` of CUDA 13.0 made it, but for the division into teams. Names are shorter, and the version
is the oldest one that has all of its instructions, so that older drivers take it.
"""

from __future__ import annotations

NAME = "copy_pages"
TEAM_THREADS = 256
WORD_BYTES = 16
PTX = """\
.version 6.5
.target sm_75
.address_size 64
.visible .entry copy_pages(
    .param .u64 source_list,
    .param .u64 target_list,
    .param .u32 pages,
    .param .u32 words
)
.maxntid 1024, 1, 1
{
    .reg .pred %p<7>;
    .reg .b32 %r<44>;
    .reg .b64 %rd<39>;
    ld.param.u64 %rd3, [source_list];
    ld.param.u64 %rd4, [target_list];
    ld.param.u32 %r13, [pages];
    ld.param.u32 %r14, [words];
    mov.u32 %r38, %tid.x;
    mov.u32 %r39, %ntid.x;
    shr.u32 %r40, %r39, 8;
    shr.u32 %r41, %r38, 8;
    mov.u32 %r42, %ctaid.x;
    mad.lo.u32 %r34, %r42, %r40, %r41;
    setp.ge.u32 %p1, %r34, %r13;
    @%p1 bra L9;
    and.b32 %r2, %r38, 255;
    add.s32 %r3, %r2, 768;
    mov.u32 %r43, %nctaid.x;
    mul.lo.u32 %r4, %r43, %r40;
    cvta.to.global.u64 %rd5, %rd3;
    cvta.to.global.u64 %rd9, %rd4;
L2:
    mul.wide.u32 %rd6, %r34, 8;
    add.s64 %rd7, %rd5, %rd6;
    ld.global.u64 %rd8, [%rd7];
    cvta.to.global.u64 %rd1, %rd8;
    add.s64 %rd10, %rd9, %rd6;
    ld.global.u64 %rd11, [%rd10];
    cvta.to.global.u64 %rd2, %rd11;
    setp.ge.u32 %p2, %r3, %r14;
    mov.u32 %r37, %r2;
    @%p2 bra L6;
    mov.u32 %r35, %r3;
L4:
    add.s32 %r15, %r35, -768;
    mul.wide.u32 %rd12, %r15, 16;
    add.s64 %rd13, %rd1, %rd12;
    add.s32 %r16, %r35, -512;
    mul.wide.u32 %rd14, %r16, 16;
    add.s64 %rd15, %rd1, %rd14;
    ld.global.v2.u64 {%rd16, %rd17}, [%rd15];
    add.s32 %r17, %r35, -256;
    mul.wide.u32 %rd20, %r17, 16;
    add.s64 %rd21, %rd1, %rd20;
    ld.global.v2.u64 {%rd22, %rd23}, [%rd21];
    mul.wide.u32 %rd26, %r35, 16;
    add.s64 %rd27, %rd1, %rd26;
    ld.global.v2.u64 {%rd28, %rd29}, [%rd27];
    add.s64 %rd32, %rd2, %rd12;
    ld.global.v4.u32 {%r18, %r19, %r20, %r21}, [%rd13];
    st.global.v4.u32 [%rd32], {%r18, %r19, %r20, %r21};
    add.s64 %rd33, %rd2, %rd14;
    st.global.v2.u64 [%rd33], {%rd16, %rd17};
    add.s64 %rd34, %rd2, %rd20;
    st.global.v2.u64 [%rd34], {%rd22, %rd23};
    add.s64 %rd35, %rd2, %rd26;
    st.global.v2.u64 [%rd35], {%rd28, %rd29};
    add.s32 %r35, %r35, 1024;
    setp.lt.u32 %p3, %r35, %r14;
    @%p3 bra L4;
    add.s32 %r37, %r35, -768;
L6:
    setp.ge.u32 %p4, %r37, %r14;
    @%p4 bra L8;
L7:
    mul.wide.u32 %rd36, %r37, 16;
    add.s64 %rd37, %rd2, %rd36;
    add.s64 %rd38, %rd1, %rd36;
    ld.global.v4.u32 {%r26, %r27, %r28, %r29}, [%rd38];
    st.global.v4.u32 [%rd37], {%r26, %r27, %r28, %r29};
    add.s32 %r37, %r37, 256;
    setp.lt.u32 %p5, %r37, %r14;
    @%p5 bra L7;
L8:
    add.s32 %r34, %r34, %r4;
    setp.lt.u32 %p6, %r34, %r13;
    @%p6 bra L2;
L9:
    ret;
}
"""
