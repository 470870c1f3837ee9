// The kernels of codec rowtopk are those of blocktopk, in blocktopk.cu.
