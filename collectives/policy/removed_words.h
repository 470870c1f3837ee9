// The table of removed words; it stands in codecs/base because codecs look it up too.
#pragma once

#include "codecs/base/removed_words.h"
