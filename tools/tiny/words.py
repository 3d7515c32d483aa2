"""Word tables of the procedural training corpus (all written by hand for this project)."""

def W(s):
    return s.split()

MALE = W("Tom Ben Max Leo Sam Jack Omar Ivan Hugo Luis Noah Finn Karl Adam Erik Paul Theo Dan Yusuf Ravi Ken Oscar Felix Amir Pablo Henry George Simon Peter Marco David Aaron Victor Nathan Jonas Walter Dylan Boris")
FEMALE = W("Anna Mia Lucy Emma Sara Nora Ella Ruth Zoe Clara Rosa Ivy Nina Alice Maya Leila Hana Julia Eva Grace Olga Tara Irene Diana Sofia Amy Greta Helen Paula Molly Vera Naomi Elena Wendy Stella Fatima Priya Yuki")
LAST = W("Smith Brown Walker Green Stone Rivers Baker Hill Cooper Young Fisher Mason Reed Wood Lane Marsh Potter Carter Frost Archer Bell Clark Evans Foster Grant Harper Knight Lopez Moreno Nguyen Ortiz Patel Quinn Rossi Silva Turner Weber Yilmaz")
PETNAMES = W("Biscuit Pepper Shadow Coco Luna Rusty Pip Daisy Ginger Snow Buddy Socks Maple Dusty Bella Rocky Misty Waffles Ziggy Tofu")
COLORS = W("red blue green yellow orange purple black white brown pink grey gold silver")
ANIMALS = W("cat dog fox bear rabbit horse cow sheep goat pig duck goose owl crow eagle frog mouse wolf deer otter turtle snake lion tiger monkey elephant giraffe penguin whale dolphin shark crab bee ant spider butterfly camel zebra hedgehog squirrel parrot seal badger donkey hen swan")
FOODS = W("apple banana pear grape lemon peach plum cherry bread cheese butter rice pasta soup salad cake cookie honey milk egg potato carrot onion tomato bean pea corn pepper fish chicken tea coffee juice yogurt mushroom pumpkin melon mango olive garlic")
OBJECTS = W("book lamp chair table clock key box cup plate spoon fork knife bottle bag coat hat shoe sock ring coin map letter pen pencil brush mirror ladder rope basket bucket blanket pillow candle drum flute guitar piano bell kite ball doll puzzle camera radio phone laptop umbrella suitcase hammer nail saw shovel wheel engine boat bicycle car train ship lantern telescope notebook scarf button")
PLACES = W("park market school library station harbour forest beach farm castle bridge garden museum bakery theatre hospital church mill tower cave island valley meadow village city mountain river lake field desert kitchen attic cellar workshop office airport zoo")
CITIES = W("Paris London Berlin Madrid Rome Vienna Oslo Dublin Lisbon Athens Cairo Tokyo Delhi Lima Ottawa Warsaw Prague Boston Chicago Sydney Mumbai Nairobi Seoul Havana Zurich Milan Hamburg Toronto Dallas Denver Kyoto Geneva Lyon Porto Bergen Riga")
ADJ = W("small big old new young quiet loud bright dark warm cold soft hard heavy light clean dirty happy sad brave shy clever gentle kind strong weak quick slow tall short round flat smooth rough sweet bitter fresh dry wet rich poor strange funny proud calm busy lazy empty full deep shallow narrow wide ancient modern simple golden wooden broken shiny dusty hungry thirsty tired careful curious famous lonely friendly silent stormy sunny foggy windy peaceful beautiful wonderful")
ADV = W("slowly quickly quietly loudly carefully gently happily sadly bravely softly suddenly proudly calmly eagerly kindly lazily neatly politely patiently")
JOBS = W("baker teacher doctor farmer sailor painter carpenter gardener fisherman tailor pilot nurse singer dancer writer cook driver judge librarian mechanic miner potter shepherd blacksmith captain engineer scientist musician postman firefighter")
WEATHER = W("rain snow wind fog sunshine thunder frost hail")
MATERIALS = W("wood stone glass iron copper paper cotton wool silk leather clay brick steel marble straw")
HOBBIES = ["painting","reading","cooking","fishing","hiking","swimming","singing","dancing","gardening","chess","football","photography","sailing","knitting","running","climbing","cycling","pottery","astronomy","baking"]
VERB_PAST = {"walk":"walked","run":"ran","jump":"jumped","sing":"sang","eat":"ate","drink":"drank","write":"wrote","read":"read","see":"saw","go":"went","come":"came","take":"took","give":"gave","find":"found","make":"made","build":"built","buy":"bought","bring":"brought","catch":"caught","teach":"taught","think":"thought","sleep":"slept","keep":"kept","feel":"felt","leave":"left","meet":"met","speak":"spoke","break":"broke","choose":"chose","drive":"drove","ride":"rode","rise":"rose","fall":"fell","fly":"flew","grow":"grew","know":"knew","throw":"threw","draw":"drew","swim":"swam","begin":"began","ring":"rang","sit":"sat","stand":"stood","win":"won","lose":"lost","hold":"held","tell":"told","sell":"sold","pay":"paid","say":"said","send":"sent","spend":"spent","lend":"lent","hear":"heard","open":"opened","close":"closed","play":"played","help":"helped","look":"looked","call":"called","carry":"carried","study":"studied","try":"tried","stop":"stopped","plan":"planned","smile":"smiled"}
PLURALS = {"cat":"cats","dog":"dogs","box":"boxes","bus":"buses","city":"cities","baby":"babies","child":"children","man":"men","woman":"women","mouse":"mice","foot":"feet","tooth":"teeth","goose":"geese","leaf":"leaves","knife":"knives","wolf":"wolves","sheep":"sheep","fish":"fish","deer":"deer","person":"people","potato":"potatoes","tomato":"tomatoes","church":"churches","brush":"brushes","story":"stories","lady":"ladies","key":"keys","day":"days","shelf":"shelves","half":"halves","ox":"oxen","photo":"photos","class":"classes","glass":"glasses","berry":"berries","party":"parties","book":"books","lamp":"lamps","tree":"trees","house":"houses","horse":"horses","life":"lives","wife":"wives","hero":"heroes","watch":"watches","fox":"foxes"}
OPPOSITES = {"hot":"cold","big":"small","fast":"slow","up":"down","left":"right","day":"night","black":"white","good":"bad","old":"young","rich":"poor","happy":"sad","full":"empty","open":"closed","high":"low","long":"short","hard":"soft","heavy":"light","loud":"quiet","wet":"dry","clean":"dirty","strong":"weak","true":"false","first":"last","early":"late","near":"far","inside":"outside","above":"below","push":"pull","buy":"sell","win":"lose","start":"finish","sweet":"bitter","wide":"narrow","thick":"thin","deep":"shallow","brave":"afraid","light":"dark","love":"hate","begin":"end","alive":"dead","smooth":"rough","sharp":"dull","tall":"short","on":"off","in":"out","north":"south","east":"west","summer":"winter","yes":"no"}
CAPITALS = {"France":"Paris","Germany":"Berlin","Spain":"Madrid","Italy":"Rome","Portugal":"Lisbon","Greece":"Athens","Austria":"Vienna","Norway":"Oslo","Sweden":"Stockholm","Denmark":"Copenhagen","Finland":"Helsinki","Ireland":"Dublin","Poland":"Warsaw","Hungary":"Budapest","Russia":"Moscow","Ukraine":"Kyiv","Turkey":"Ankara","Egypt":"Cairo","Kenya":"Nairobi","Japan":"Tokyo","China":"Beijing","India":"New Delhi","Thailand":"Bangkok","Vietnam":"Hanoi","Israel":"Jerusalem","Iran":"Tehran","Iraq":"Baghdad","Canada":"Ottawa","Mexico":"Mexico City","Cuba":"Havana","Brazil":"Brasilia","Argentina":"Buenos Aires","Chile":"Santiago","Peru":"Lima","Colombia":"Bogota","Australia":"Canberra","New Zealand":"Wellington","England":"London","Scotland":"Edinburgh","Belgium":"Brussels","Switzerland":"Bern","Iceland":"Reykjavik","Morocco":"Rabat","Ghana":"Accra","Nigeria":"Abuja","South Korea":"Seoul","Indonesia":"Jakarta","the Netherlands":"Amsterdam","Romania":"Bucharest","Bulgaria":"Sofia","Croatia":"Zagreb","Serbia":"Belgrade","Latvia":"Riga","Estonia":"Tallinn","Lithuania":"Vilnius"}
CONTINENT = {"France":"Europe","Germany":"Europe","Spain":"Europe","Italy":"Europe","Greece":"Europe","Norway":"Europe","Poland":"Europe","Egypt":"Africa","Kenya":"Africa","Nigeria":"Africa","Morocco":"Africa","Ghana":"Africa","Japan":"Asia","China":"Asia","India":"Asia","Thailand":"Asia","Vietnam":"Asia","Canada":"North America","Mexico":"North America","Cuba":"North America","Brazil":"South America","Argentina":"South America","Chile":"South America","Peru":"South America","Australia":"Oceania","New Zealand":"Oceania"}
DAYS = W("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = W("January February March April May June July August September October November December")
MONTHLEN = [31,28,31,30,31,30,31,31,30,31,30,31]
PLANETS = W("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
CHEM = {"hydrogen":"H","helium":"He","lithium":"Li","carbon":"C","nitrogen":"N","oxygen":"O","fluorine":"F","neon":"Ne","sodium":"Na","magnesium":"Mg","aluminium":"Al","silicon":"Si","phosphorus":"P","sulfur":"S","chlorine":"Cl","argon":"Ar","potassium":"K","calcium":"Ca","iron":"Fe","copper":"Cu","zinc":"Zn","silver":"Ag","tin":"Sn","gold":"Au","mercury":"Hg","lead":"Pb","iodine":"I","nickel":"Ni"}
SOUNDS = {"cat":"meow","dog":"woof","cow":"moo","sheep":"baa","duck":"quack","pig":"oink","horse":"neigh","lion":"roar","owl":"hoot","frog":"croak","bee":"buzz","snake":"hiss","crow":"caw","mouse":"squeak","hen":"cluck","wolf":"howl"}
BABIES = {"cat":"kitten","dog":"puppy","cow":"calf","sheep":"lamb","horse":"foal","pig":"piglet","duck":"duckling","goose":"gosling","bear":"cub","goat":"kid","frog":"tadpole","swan":"cygnet","lion":"cub","deer":"fawn"}
LEGS = {"cat":4,"dog":4,"cow":4,"horse":4,"spider":8,"ant":6,"bee":6,"duck":2,"owl":2,"snake":0,"fish":0,"crab":10,"sheep":4,"lion":4,"hen":2,"butterfly":6}
SHAPES = {"triangle":3,"square":4,"rectangle":4,"pentagon":5,"hexagon":6,"octagon":8}
THINGCOLOR = {"the sky":"blue","grass":"green","snow":"white","coal":"black","a banana":"yellow","blood":"red","an orange":"orange","milk":"white","a lemon":"yellow","a leaf in summer":"green","the sun":"yellow","chocolate":"brown","a ripe tomato":"red","a carrot":"orange","an elephant":"grey","a flamingo":"pink","the night":"black","an emerald":"green","a ruby":"red"}
NUMW = W("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty")
TENS = {20:"twenty",30:"thirty",40:"forty",50:"fifty",60:"sixty",70:"seventy",80:"eighty",90:"ninety"}
def numword(n):
    if n <= 20: return NUMW[n]
    if n < 100: return TENS[n//10*10] + ("-" + NUMW[n%10] if n%10 else "")
    if n < 1000: return NUMW[n//100] + " hundred" + (" and " + numword(n%100) if n%100 else "")
    return str(n)
LANGS = ["Spanish","French","German","Chinese","Hebrew","Russian"]
TRANS = {  # Spanish, French, German, Chinese, Hebrew, Russian
"cat":"gato chat Katze 猫 חתול кошка","dog":"perro chien Hund 狗 כלב собака","house":"casa maison Haus 房子 בית дом","water":"agua eau Wasser 水 מים вода",
"bread":"pan pain Brot 面包 לחם хлеб","milk":"leche lait Milch 牛奶 חלב молоко","book":"libro livre Buch 书 ספר книга","sun":"sol soleil Sonne 太阳 שמש солнце",
"moon":"luna lune Mond 月亮 ירח луна","tree":"árbol arbre Baum 树 עץ дерево","flower":"flor fleur Blume 花 פרח цветок","friend":"amigo ami Freund 朋友 חבר друг",
"red":"rojo rouge rot 红色 אדום красный","blue":"azul bleu blau 蓝色 כחול синий","green":"verde vert grün 绿色 ירוק зелёный","white":"blanco blanc weiß 白色 לבן белый","black":"negro noir schwarz 黑色 שחור чёрный",
"one":"uno un eins 一 אחת один","two":"dos deux zwei 二 שתיים два","three":"tres trois drei 三 שלוש три","four":"cuatro quatre vier 四 ארבע четыре","five":"cinco cinq fünf 五 חמש пять",
"hello":"hola bonjour hallo 你好 שלום привет","thanks":"gracias merci danke 谢谢 תודה спасибо","yes":"sí oui ja 是 כן да","no":"no non nein 不 לא нет",
"mother":"madre mère Mutter 母亲 אמא мать","father":"padre père Vater 父亲 אבא отец","day":"día jour Tag 天 יום день","night":"noche nuit Nacht 夜晚 לילה ночь",
"fish":"pez poisson Fisch 鱼 דג рыба","bird":"pájaro oiseau Vogel 鸟 ציפור птица","apple":"manzana pomme Apfel 苹果 תפוח яблоко","city":"ciudad ville Stadt 城市 עיר город",
"sea":"mar mer Meer 大海 ים море","fire":"fuego feu Feuer 火 אש огонь","heart":"corazón cœur Herz 心 לב сердце","school":"escuela école Schule 学校 ספר‑בית школа",
"table":"mesa table Tisch 桌子 שולחן стол","door":"puerta porte Tür 门 דלת дверь","child":"niño enfant Kind 孩子 ילד ребёнок","world":"mundo monde Welt 世界 עולם мир",
"time":"tiempo temps Zeit 时间 זמן время","love":"amor amour Liebe 爱 אהבה любовь","snow":"nieve neige Schnee 雪 שלג снег","rain":"lluvia pluie Regen 雨 גשם дождь","horse":"caballo cheval Pferd 马 סוס лошадь","tea":"té thé Tee 茶 תה чай","coffee":"café café Kaffee 咖啡 קפה кофе","star":"estrella étoile Stern 星星 כוכב звезда"}
TRANS["school"] = "escuela école Schule 学校 בית‑ספר школа"
TRANS = {k: v.split() for k, v in TRANS.items()}
EMOJI = {"happy":"😀","sad":"😢","love":"❤️","fire":"🔥","star":"⭐","sun":"☀️","moon":"🌙","tree":"🌳","flower":"🌸","cat":"🐱","dog":"🐶","fox":"🦊","bear":"🐻","frog":"🐸","fish":"🐟","bird":"🐦","apple":"🍎","banana":"🍌","pizza":"🍕","cake":"🍰","coffee":"☕","car":"🚗","train":"🚆","rocket":"🚀","house":"🏠","book":"📖","music":"🎵","ball":"⚽","gift":"🎁","heart":"💙","rainbow":"🌈","snow":"❄️","party":"🎉","lion":"🦁","bee":"🐝","turtle":"🐢","ghost":"👻","robot":"🤖","key":"🔑","clock":"⏰"}
COMMON = W("the of and to in is it you that he was for on are with as his they be at one have this from or had by hot but some what there we can out other were all your when up use word how said an each she which do their time if will way about many then them would write like so these her long make thing see him two has look more day could go come did my sound no most number who over know water than call first people may down side been now find any new work part take get place made live where after back little only round man year came show every good me give our under name very through just form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence set three want air well also play small end put home read hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture try us again animal point mother world near build self earth father head stand own page should country found answer school grow study still learn plant cover food sun four thought let keep eye never last door between city tree cross since hard start might story saw far sea draw left late run while press close night real life few stop open seem together next white children begin got walk example ease paper often always music those both mark book letter until mile river car feet care second group carry took rain eat room friend began idea fish mountain north once base hear horse cut sure watch color face wood main enough plain girl usual young ready above ever red list though feel talk bird soon body dog family direct pose leave song measure state product black short numeral class wind question happen complete ship area half rock order fire south problem piece told knew pass farm top whole king size heard best hour better true during hundred five remember step early hold west ground interest reach fast sing listen six table travel less morning ten simple several vowel toward war lay against pattern slow center love person money serve appear road map science rule govern pull cold notice voice fall power town fine certain fly unit lead cry dark machine note wait plan figure star box noun field rest correct able pound done beauty drive stood contain front teach week final gave green quick develop ocean warm free minute strong special mind behind clear tail produce fact street inch lot nothing course stay wheel full force blue object decide surface deep moon island foot yet busy test record boat common gold possible plane age dry wonder laugh thousand ago ran check game shape yes hot miss brought heat snow bed bring sit perhaps fill east weight language among jumps lazy brown value server client model token prompt response error code file data user system message function default")
SPELL = sorted(set(w for w in COLORS+ANIMALS+FOODS+OBJECTS+PLACES+ADJ+JOBS+MATERIALS+WEATHER+list(PLURALS)+list(VERB_PAST)+list(VERB_PAST.values())+list(BABIES.values())+list(CHEM) if 3 <= len(w) <= 8))
_tok = []
def rtok(r, lo=1, hi=8):
    """Text made of random vocabulary pieces: makes copying independent of the known words."""
    if not _tok:
        import json, os
        from special import TOKFILE as f
        m = json.load(open(f))["model"]["vocab"] if os.path.exists(f) else {}   # before the tokenizer exists: known words only
        b = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)); c = b[:]; n = 0
        for x in range(256):
            if x not in b: b.append(x); c.append(256 + n); n += 1
        d = {chr(y): x for x, y in zip(b, c)}
        for t in sorted(m):
            try: u = bytes(d[ch] for ch in t).decode("utf-8")
            except (UnicodeDecodeError, KeyError): continue
            if u.strip() and "\n" not in u and "<" not in u and u.isprintable(): _tok.append(u)
        if not _tok: _tok.extend(SPELL)
    return "".join(r.choice(_tok) for _ in range(r.randint(lo, hi))).strip() or "x"
def anyname(r):
    c = r.random()
    if c < .6: return r.choice(MALE if r.random() < .5 else FEMALE)
    if c < .9: return pseudo(r).capitalize()
    return "".join(ch for ch in rtok(r, 1, 3) if ch.isalnum()).capitalize() or "Bo"
def anyword(r):
    c = r.random()
    return r.choice(SPELL) if c < .35 else r.choice(COMMON) if c < .7 else pseudo(r) if c < .9 else rtok(r, 1, 2)
SYL_A = W("ba be bi bo bu da de di do du fa fi fo ga ge go ha he hi ka ke ki ko la le li lo lu ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we za ze zi zo zu")
SYL_B = W("n r l m s x k t nd rt lk st sh ck rn lm ")+[""]*8
def pseudo(r, lo=2, hi=3):
    """An invented word: syllables, or the halves of two real words, or random letters."""
    c = r.random()
    if lo > 1 and c < .4:
        a, b = r.choice(SPELL), r.choice(SPELL)
        return a[:r.randint(2, len(a))] + b[r.randint(1, len(b) - 1):]
    if lo > 1 and c < .46:
        return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 7)))
    return "".join(r.choice(SYL_A) for _ in range(r.randint(lo, hi))) + r.choice(SYL_B)
